"""Which commands there are: the distribution's own, and those that others add."""

from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from fairlead.cli.main import GROUP, OWN, Command, find_commands, main


def test_local_mode_adds_its_commands_by_its_entry_points() -> None:
    assert {"local", "demo"} == set(find_commands()) - set(OWN)


def test_without_local_mode_its_commands_are_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairlead.cli.main.entry_points", lambda group: EntryPoints())
    with pytest.raises(SystemExit):
        main(["local", "up"])
    assert "no command 'local'; `fairlead --help` tells all" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "demo" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("describe", "no command 'describe'; kubectl has it, where LLMDeployments are `llm` (`kubectl get llm`)"),
        ("modles", "no command 'modles': did you mean models?"),
        ("lcoal", "no command 'lcoal': did you mean local?"),
        ("fly", "no command 'fly'; `fairlead --help` tells all"),
    ],
)
def test_a_command_that_is_not_there_tells_what_was_meant(
    typed: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([typed, "llm"])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_another_distribution_cannot_replace_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    impostor = EntryPoint(name="gateway", value="no_such_module:IMPOSTOR", group=GROUP)
    monkeypatch.setattr("fairlead.cli.main.entry_points", lambda group: EntryPoints([impostor]))
    assert find_commands()["gateway"] == OWN["gateway"]


def test_a_command_of_another_distribution_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added = Command("fairlead.cli.completion", "another one")
    points = [SimpleNamespace(name="another", load=lambda: added)]
    monkeypatch.setattr("fairlead.cli.main.entry_points", lambda group: points)
    assert main(["another", "bash"]) == 0
    assert "complete -o default -F _fairlead fairlead" in capsys.readouterr().out
