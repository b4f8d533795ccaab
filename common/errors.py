"""The one error that is meant for people: it becomes one line on the terminal and exit code 2."""


class UserError(ValueError):
    """Something the user can mend.

    The message is one line: what was wrong, what was received ("Received: ..."), what to do.
    Anything else that is raised is a bug and keeps its traceback.
    """


EXIT_CODE_USER_ERROR = 2
