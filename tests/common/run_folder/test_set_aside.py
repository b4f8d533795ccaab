"""Run folders that are set aside."""

from common.run_folder.set_aside import set_aside


def test_a_run_and_its_log_are_kept_under_the_first_free_number(tmp_path):
    run, log = tmp_path / "run", tmp_path / "run.log"
    for number in (1, 2):
        run.mkdir()
        (run / "run.json").write_text(str(number))
        log.write_text(f"log {number}")
        assert set_aside(run, log=log) == tmp_path / f"set-aside/run-{number}"
        assert not run.exists() and not log.exists()
    assert (tmp_path / "set-aside/run-2/run.json").read_text() == "2"
    assert (tmp_path / "set-aside/run-2/output.log").read_text() == "log 2"
    log.write_text("failed")  # before there was a folder
    assert (set_aside(run, log=log) / "output.log").read_text() == "failed"
