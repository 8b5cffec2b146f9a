"""What reaches a command as it was given: arguments, environment, working folder."""

from __future__ import annotations

import os

import pytest

from sandboxkit import Session
from sandboxkit.errors import PathError

from ._inside import fresh, read, sh
from ._suite import Suite, Trait, needs

AWKWARD = {
    "spaces": " two  spaces ",
    "single quotes": "it's 'quoted'",
    "double quotes": 'say "hi"',
    "newlines": "one\ntwo\n",
    "dollar": "$HOME ${PATH} $(id) `id`",
    "backslashes": "a\\b\\\\c\\n",
    "globs": "* ? [a-z] ~ {a,b}",
    "shell operators": "; | & && > < ( ) !",
    "emoji": "😀 é €",
    "tabs and controls": "\t\x01\x7f\r",
    "leading dash": "-n --help -rf",
    "equals": "a=b=c",
    "percent": "%s %d %%",
    "empty": "",
    "not utf-8": os.fsdecode(b"\xff\xfe"),
}
"""Arguments with spaces, quotes, newlines, `$`, emoji and a leading dash; an empty argument."""


class Arguments(Suite):
    """argv, exactly."""

    @pytest.mark.parametrize("argument", AWKWARD.values(), ids=AWKWARD)
    def test_an_argument_arrives_exactly(self, session: Session, argument: str) -> None:
        """No shell, no quoting, nothing to escape."""
        result = sh(session, 'printf "%s|" "$#" "$@"', argument, "last")
        assert result.stdout_bytes == b"2|" + os.fsencode(argument) + b"|last|"

    def test_all_of_them_arrive_together_in_order(self, session: Session) -> None:
        """Boundaries between arguments are kept."""
        result = sh(session, 'for a; do printf "%s\\001\\002" "$a"; done', *AWKWARD.values())
        assert result.stdout_bytes.split(b"\1\2")[:-1] == [os.fsencode(argument) for argument in AWKWARD.values()]

    def test_an_argument_list_of_100_kib_arrives(self, session: Session) -> None:
        """An argument list of 100 KiB; here of many, and of one."""
        many = [f"{number:09}" for number in range(10_240)]
        result = sh(session, 'printf "%s\\n" "$@"', *many)
        assert result.stdout.split() == many
        assert sh(session, 'printf %s "$1"', "x" * 100 * 1024).stdout_bytes == b"x" * 100 * 1024

    def test_any_sequence_of_strings_will_do(self, session: Session) -> None:
        """`args` is a sequence: lists and tuples alike."""
        assert session.exec("echo", ("a", "b")).stdout == session.exec("echo", ["a", "b"]).stdout == "a b\n"

    def test_the_arguments_are_in_the_result(self, session: Session) -> None:
        """The result says what ran."""
        result = session.exec("echo", ["a", "b c"])
        assert (result.command, result.args) == ("echo", ("a", "b c"))


class Environment(Suite):
    """Variables of the image, the sandbox, the session and the call."""

    @pytest.mark.parametrize(
        "value", [v for k, v in AWKWARD.items() if k != "empty"], ids=[k for k in AWKWARD if k != "empty"]
    )
    def test_a_value_arrives_exactly(self, session: Session, value: str) -> None:
        """An env value with newlines, and whatever else."""
        assert sh(session, 'printf "<%s>" "$V"', env={"V": value}).stdout_bytes == b"<" + os.fsencode(value) + b">"

    def test_an_empty_value_is_set(self, session: Session) -> None:
        """An empty value is not an unset one."""
        assert sh(session, 'echo "${V-unset}<$V>"', env={"V": ""}).stdout == "<>\n"
        assert sh(session, 'echo "${V-unset}"').stdout == "unset\n"

    def test_the_call_wins_over_the_session_and_that_over_the_sandbox(self) -> None:
        """Env of each level is set over the one below."""
        sandbox = self.sandbox(env={"A": "sandbox", "B": "sandbox", "C": "sandbox"})
        with sandbox.create_session(env={"B": "session", "C": "session"}) as session:
            result = sh(session, 'echo "$A $B $C $D"', env={"C": "call", "D": "call"})
            assert result.stdout == "sandbox session call call\n"
            assert sh(session, 'echo "$A $B $C $D"').stdout == "sandbox session session \n"

    def test_one_calls_variables_are_gone_in_the_next(self, session: Session) -> None:
        """Calls share nothing but the workspace."""
        assert sh(session, "export LEFT=over; echo $GIVEN", env={"GIVEN": "x"}).stdout == "x\n"
        assert sh(session, "echo ${LEFT-none} ${GIVEN-none}").stdout == "none none\n"

    def test_nothing_of_the_hosts_environment_reaches_a_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Secrets of the host stay there."""
        monkeypatch.setenv("SANDBOXKIT_TEST_CANARY", "of-the-host")
        with self.create() as session:
            assert "of-the-host" not in sh(session, "set; export").check().stdout

    def test_the_images_path_stays(self, session: Session) -> None:
        """The image's environment stays; other variables do not replace it."""
        plain = sh(session, "echo $PATH").stdout
        assert plain != "\n"
        assert sh(session, "echo $PATH", env={"OTHER": "x"}).stdout == plain

    def test_the_command_is_looked_up_in_the_path_it_is_given(self, session: Session) -> None:
        """PROTOCOL 5.1: argv[0] without a slash is looked up in the PATH of that environment."""
        folder = fresh("bin")
        sh(
            session, 'mkdir "$1"; printf \'#!/bin/sh\\necho found\\n\' >"$1/tool-x"; chmod 755 "$1/tool-x"', folder
        ).check()
        where = sh(session, "pwd").check().stdout.strip()
        assert session.exec("tool-x").exit_code == 127
        assert session.exec("tool-x", env={"PATH": f"/none:{where}/{folder}"}).check().stdout == "found\n"
        assert session.exec("sh", env={"PATH": "/none"}).exit_code == 127


class WorkingFolder(Suite):
    """`cwd`: inside the workspace, or nothing runs."""

    def test_a_command_starts_in_the_workspace(self, session: Session) -> None:
        """Cwd is the workspace, which can be written."""
        path = fresh()
        sh(session, 'echo hi >"$1"', path).check()
        assert read(session, f"./{path}") == "hi\n"

    @needs(Trait.OWN_FILES)
    def test_the_workspace_is_where_the_session_says(self, session: Session) -> None:
        """`Session.workspace` is the path inside; an absolute cwd below it is accepted."""
        sh(session, "mkdir -p absolute/folder").check()
        assert sh(session, "pwd").stdout == session.workspace + "\n"
        assert sh(session, "pwd", cwd=session.workspace).stdout == session.workspace + "\n"
        assert (
            sh(session, "pwd", cwd=f"{session.workspace}/absolute/folder").stdout
            == f"{session.workspace}/absolute/folder\n"
        )

    @needs(Trait.OWN_FILES)
    def test_a_new_workspace_is_empty(self) -> None:
        """Nothing of the image or of another session is in it."""
        with self.create() as session:
            assert session.exec("ls", ["-A"]).check().stdout == ""

    def test_a_folder_below_the_workspace_will_do(self, session: Session) -> None:
        """Relative to the workspace."""
        folder = fresh("folder")
        session.exec("mkdir", ["-p", f"{folder}/below"]).check()
        for cwd in (
            f"{folder}/below",
            f"./{folder}/./below/",
            f"{folder}/below/../below",
            f"{session.workspace}/{folder}/below",
        ):
            assert sh(session, "pwd", cwd=cwd).check().stdout.endswith(f"/{folder}/below\n"), cwd

    def test_a_relative_command_is_relative_to_the_folder(self, session: Session) -> None:
        """PROTOCOL 5.1: with a slash it is a path relative to the working folder."""
        folder = fresh("folder")
        sh(session, 'mkdir "$1"; printf \'#!/bin/sh\\necho here\\n\' >"$1/run"; chmod 755 "$1/run"', folder).check()
        assert session.exec("./run", cwd=folder).check().stdout == "here\n"
        assert session.exec("./run").exit_code == 127

    def test_a_missing_folder_is_a_path_error_and_nothing_ran(self, session: Session) -> None:
        """Cwd missing → PathError; nothing ran."""
        path = fresh()
        with pytest.raises(PathError, match="no-such-folder"):
            sh(session, 'touch "$1"', path, cwd="no-such-folder")
        assert not session.exec("test", ["-e", path]).ok

    def test_a_file_as_folder_is_a_path_error(self, session: Session) -> None:
        """Cwd that is no folder."""
        path = fresh()
        session.exec("touch", [path]).check()
        with pytest.raises(PathError):
            session.exec("true", cwd=path)

    @pytest.mark.parametrize("cwd", ["..", "../..", "/", "/etc", "sub/../..", "/workspace/../etc", "/workspaces"])
    def test_a_folder_outside_the_workspace_is_a_path_error(self, session: Session, cwd: str) -> None:
        """Cwd outside the workspace → PathError; nothing ran."""
        session.exec("mkdir", ["-p", "sub"]).check()
        with pytest.raises(PathError):
            session.exec("true", cwd=cwd)

    @pytest.mark.parametrize("target", ["/", "/etc", "..", "sub/../.."])
    def test_a_link_that_leads_outside_is_a_path_error(self, session: Session, target: str) -> None:
        """A symlink cannot lead outside; the container judges, not the text."""
        link = fresh("link")
        sh(session, 'mkdir -p sub; ln -s "$1" "$2"', target, link).check()
        with pytest.raises(PathError):
            session.exec("true", cwd=link)

    def test_a_link_to_a_folder_inside_will_do(self, session: Session) -> None:
        """Links inside the workspace are followed."""
        link = fresh("link")
        sh(session, 'mkdir -p inside; ln -s inside "$1"', link).check()
        assert sh(session, "pwd -P", cwd=link).check().stdout.endswith("/inside\n")

    def test_a_link_in_a_circle_is_a_path_error(self, session: Session) -> None:
        """ELOOP, not a hang."""
        link = fresh("link")
        sh(session, 'ln -s "$1" "$1"', link).check()
        with pytest.raises(PathError):
            session.exec("true", cwd=link)

    def test_any_folder_name_will_do(self, session: Session) -> None:
        """Any file name a Linux filesystem allows works."""
        for name in ("with space", "new\nline", "-dash", "é😀", "...", os.fsdecode(b"\xff")):
            sh(session, 'mkdir -p -- "./$1"', name).check()
            result = sh(session, 'pwd; echo "."', cwd=name).check()
            assert result.stdout_bytes.endswith(b"/" + os.fsencode(name) + b"\n.\n")
