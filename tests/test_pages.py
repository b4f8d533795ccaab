"""The pages: links lead to files and headings, and every command shown is one that works.

A command in a block of code is read as its program reads it, without running it: `make` lines are expanded by
`make -n`, `python -m launch`, `analysis` and `common` parse theirs, and settings of the trainers are parsed wherever
they stand. Of programs that are not ours only those of `ELSEWHERE` may be shown.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from analysis import __main__ as analysis
from common import __main__ as common
from common.config import parse_command_line
from common.trained import prediction
from launch import __main__ as launch
from launch.installation import command as setup_command

ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(r"(\S*/)?python[\d.]*")
SHELL_LANGUAGES = ("sh", "bash", "shell", "console")
# Program -> the test that runs what is shown of it, or why none does.
ELSEWHERE = {
    "apptainer": "tests/launch/test_containers.py",
    "cd": "the shell's own",
    "docker": "tests/launch/test_containers.py",
    "export": "the shell's own",
    "git": "clones from an address that the reader knows",
    "kill": "tests/end_to_end/test_lesson.py",
    "kubectl": "tests/launch/jobs/test_schedulers.py",
    "pcluster": "makes a cluster on AWS; its file is parsed by tests/launch/jobs/test_rendered.py",
    "pip": "tests/launch/installation/test_setup.py",
    "sed": "tests/end_to_end/test_lesson.py",
    "sky": "tests/launch/jobs/test_schedulers.py",
    "source": "the shell's own",
    "tar": "tests/launch/offline/test_stage.py",
    "uv": "gives a machine its Python, where it has none",
}
STARTERS = ("horovodrun", "mpirun", "srun", "docker", "apptainer")  # of a Python program, which is looked at
# A Python program of ours, for both frameworks X -> the test that runs it.
SCRIPTS = {
    "X_impl/minimal.py": "tests/end_to_end/test_minimal.py",
    "bundle/unstage.py": "tests/launch/offline/test_stage.py",
    "apart.py": "tests/end_to_end/test_lesson.py",
    "unscaled.py": "tests/end_to_end/test_lesson.py",
    "unsharded.py": "tests/end_to_end/test_lesson.py",
    "horovod/build.py": "tests/launch/horovod/test_build.py",
    "tests/equality/run.py": "tests/equality/test_rows.py",
    "tests/mutations/run.py": "tests/mutations/test_mutations.py",
    "tests/run.py": "tests/test_run.py",
}
MODULES = {"launch.installation.lock": "writes what is locked; tests/launch/installation/test_packages.py calls it"}
TOOLS = ("pytest", "mypy", "ruff", "pip", "venv")  # of others, started by make


def pages():
    """Return the tracked pages, and those that are about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("the list of pages is git's, and this is no clone")
    return [ROOT / name for name in sorted(set(done.stdout.splitlines())) if (ROOT / name).exists()]


# Links


LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)")
BLOCK = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """Return the names by which GitHub links to the headings of a page, of which no two are the same."""
    found = set(re.findall(r'<a (?:name|id)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.+?) *#*$", BLOCK.sub("", text), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def broken_links(page):
    """Return the links of a page that lead to no file or no heading; those to the web are not followed."""
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))
    return [link for link in LINK.findall(text) if not re.match(r"[a-z][a-z+.-]*:", link) and is_broken(link, page)]


def is_broken(link, page):
    name, _, anchor = link.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8"))


def test_links_lead_to_files_and_headings():
    broken = {str(page.relative_to(ROOT)): broken_links(page) for page in pages()}
    assert {page: links for page, links in broken.items() if links} == {}


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One `two`, 3.5\n[a](#one-two-35) [b](#one) [c](page.md) [d](none.md) [e](https://none.md)\n")
    assert broken_links(page) == ["#one", "none.md"]


# Commands


def shown_commands(page):
    """Yield the commands of a page's blocks of code: all lines of shell, and in blocks of no language those of ours."""
    language, pending = None, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            language = line.strip("` ").split(" ")[0] if language is None else None
        elif language in ("", *SHELL_LANGUAGES):
            pending += line.strip().removesuffix("\\")
            if line.endswith("\\"):
                continue
            command, pending = pending.removeprefix("$ "), ""
            is_shell = language in ("sh", "bash", "shell") or (language == "console" and line.startswith("$ "))
            first = re.sub(r"^([A-Z_]+=\S* +)+", "", command).split(" ")[0]
            if command and not command.startswith("#") and (is_shell or (language == "" and is_program(first))):
                yield f"{page.relative_to(ROOT)}:{number}", command


def named_commands(page):
    """Yield the commands in the text and the tables of a page, which may leave out arguments or write `...`."""
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), start=1):
        for command in re.findall(r"`((?:make|python|horovodrun) [^`]+)`", line):
            yield f"{page.relative_to(ROOT)}:{number}", command.replace("...", "").replace("\\|", "|")


def is_program(word):
    """Return whether a line that begins so is a command."""
    return word in ("make", *STARTERS, *ELSEWHERE) or bool(PYTHON.fullmatch(word))


def programs_of(line):
    """Yield the words of each program that a line of shell starts, without variables before it and redirections."""
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "VALUE", line), posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    words = []
    to_file = False
    for word in [*lexer, ";"]:
        if word in ("&&", "||", "|", ";", "&"):
            if words:
                yield words
            words = []
        elif (word and not word.strip("<>&")) or to_file:
            to_file = not to_file
        elif words or not re.fullmatch(r"[A-Za-z_]+=.*", word, flags=re.DOTALL):
            words.append(word)


def check(command):
    """Return what is wrong with a command, or None."""
    try:
        return next(filter(None, map(check_words, programs_of(command))), None)
    except ValueError as error:  # quotes that are not closed
        return str(error)


def check_words(words):
    """Return what is wrong with the words of one program."""
    if words[0] == "make":
        return check_make(words)
    arguments = after_python(words) if PYTHON.fullmatch(words[0]) or words[0] in STARTERS else None
    if arguments:
        return check_python(arguments)
    return None if words[0] in ELSEWHERE else f"{words[0]} is not in ELSEWHERE and starts no Python program"


def after_python(words):
    """Return what follows Python's name; None: it is not started."""
    return next((words[number + 1 :] for number, word in enumerate(words) if PYTHON.fullmatch(word)), None)


def check_make(words):
    """Expand by `make -n` and look at the programs of ours in what would be run."""
    known = set(re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # Where `make test ARGS=...` runs this, its variables are not those of the page.
    dropped = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", *known}
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    command = ["make", "-n", *words[1:]]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    unknown = {word.partition("=")[0] for word in words[1:] if "=" in word} - known
    if unknown:
        return f"the Makefile has no variable {', '.join(sorted(unknown))}"
    lines = done.stdout.replace("\\\n", " ").splitlines()
    started = [after_python(program) for line in lines for program in programs_of(line)]
    return next(filter(None, (check_python(arguments) for arguments in started if arguments)), None)


def check_python(words):
    words = [word for word in words if word != "-I"]
    if words[0] == "-m":
        module, arguments = words[1], words[2:]
        if module in PROGRAMS:
            return parsed(PROGRAMS[module], arguments)
        return None if module.split(".")[0] in TOOLS or module in MODULES else f"{module} is no module of ours"
    program, arguments = words[0].removeprefix("/opt/horovod-twins/"), words[1:]
    if program.endswith("_impl/train.py"):
        return parsed(lambda given: parse_command_line(given, program=program), arguments)
    if program.endswith("_impl/predict.py"):
        return parsed(lambda given: prediction._parse(given, program=program), arguments)
    if program == "launch/setup.py":
        return parsed(setup_command.parse, arguments)
    program = re.sub("^(torch|keras)_", "X_", program)
    return None if program in SCRIPTS else f"{program} is not in SCRIPTS"


def parse_launch(arguments):
    """Parse a command of `python -m launch` and what it hands to a trainer."""
    launch.main(arguments)
    if "--" in arguments:
        handed = arguments[arguments.index("--") + 1 :]
        if arguments[0] == "submit":
            program, *handed = handed
            handed = [] if program == "experiment" else handed
        parse_command_line(handed, program="train.py")


PROGRAMS = {"launch": parse_launch, "analysis": analysis.main, "common": common.main}


def parsed(parse, arguments):
    """Return the error of a parser, or None; `--help` ends one well."""
    messages = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(messages):
            parse(arguments)
    except SystemExit as end:
        return None if end.code in (0, None) else f"cannot be parsed: {messages.getvalue().strip()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.fixture
def parse_only(monkeypatch):
    """Commands are parsed and not run."""
    monkeypatch.chdir(ROOT)
    for program in (launch, analysis, common):
        monkeypatch.setattr(program, "run_command", lambda run, program: 0)


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize("commands_of", [shown_commands, named_commands])
def test_every_command_can_be_read_by_its_program(commands_of):
    commands = [command for page in pages() if page.name != "CHANGELOG.md" for command in commands_of(page)]
    assert len(commands) > 20
    wrong = [f"{place}: {text}: {reason}" for place, text in commands if (reason := check(text))]
    if commands_of is named_commands:
        wrong = [line for line in wrong if "arguments are required" not in line]
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("make tset", "No rule to make target"),
        ("make train NPS=2", "no variable NPS"),
        ('make train ARGS="--epoch 3"', "unknown option. Received: --epoch"),
        ("make bench ARGS=--nosuch", "cannot be parsed"),
        ("python -m launch trian", "cannot be parsed"),
        ("cd here && python -m launch train --np 2 -- --learning_rat 1", "unknown option"),
        ("python -m launch submit -- torch_impl/train.py --epoch 3", "unknown option"),
        ("horovodrun -np 2 python torch_impl/train.py --modle cnn", "unknown option"),
        ("horovodrun -np 2", "starts no Python program"),
        ("python nosuch.py", "not in SCRIPTS"),
        ("python -m nosuch", "no module of ours"),
        ("rm -rf runs", "not in ELSEWHERE"),
    ],
)
def test_a_wrong_command_is_found(command, words):
    assert words in str(check(command))


def test_programs_that_are_not_read_here_are_run_by_a_test():
    for program, reason in (ELSEWHERE | SCRIPTS | MODULES).items():
        assert not reason.startswith("tests/") or program.rpartition("/")[2] in (ROOT / reason).read_text(), program
