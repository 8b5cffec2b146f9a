"""Programs that start another one: it is found behind whatever options there are, or the call is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.tools._wrappers import UnknownOptionError, inner_commands, is_multi_call


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("env curl x", "curl x"),
        ("/usr/bin/env -i A=b C= curl x", "curl x"),
        ("env -u A -- curl", "curl"),
        ("env --unset=A curl", "curl"),
        ("env -uA curl", "curl"),
        ("nice curl", "curl"),
        ("nice -n 5 curl", "curl"),
        ("nice -n5 curl", "curl"),
        ("nice -5 curl", "curl"),
        ("nice --adjustment=5 curl", "curl"),
        ("nohup curl -o x", "curl -o x"),
        ("timeout 5 curl", "curl"),
        ("timeout -k 3 -s KILL 5 curl", "curl"),
        ("timeout --signal=KILL --foreground 5s curl", "curl"),
        ("setsid -fw curl", "curl"),
        ("stdbuf -oL -e 0 curl", "curl"),
        ("time -p curl", "curl"),
        ("time -o file curl", "curl"),
        ("ionice -c2 -n 7 curl", "curl"),
        ("xargs -0 -n 1 -I {} curl {}", "curl {}"),
        ("xargs -0rn1 curl", "curl"),
        ("sudo -u root A=b curl", "curl"),
        ("doas curl", "curl"),
        ("busybox wget x", "wget x"),
        ("/bin/busybox wget", "wget"),
        ("busybox.static wget", "wget"),
        ("toybox wget", "wget"),
        ("coreutils ls", "ls"),
        ("coreutils --coreutils-prog=ls -l", "ls -l"),
        ("find . -name x -exec curl {} ;", "curl {} ;"),
        ("find . -execdir curl {} +", "curl {} +"),
    ],
)
def test_the_inner_program_is_found(line: str, inner: str) -> None:
    command, *args = line.split(" ")
    (found,) = inner_commands(command, args)
    assert " ".join((found.command, *found.args)) == inner
    assert found.at is None or args[found.at] == found.command


@pytest.mark.parametrize(
    "line", ["env", "env -i", "xargs -0", "timeout 5", "busybox", "busybox --list", "ls -l", "curl env"]
)
def test_without_one_there_is_none(line: str) -> None:
    command, *args = line.split()
    assert inner_commands(command, args) == []


@pytest.mark.parametrize(
    "line",
    [
        *("env -S curl", "env --split-string=curl", "env -iS curl", "env -C / curl", "env --chdir=/ curl"),
        *("nice --unknown curl", "timeout --for 5 curl", "xargs -J% curl", "sudo -s curl", "doas -C file curl"),
    ],
)
def test_an_option_that_is_not_known_is_refused(line: str) -> None:
    command, *args = line.split()
    with pytest.raises(UnknownOptionError):
        inner_commands(command, args)


def test_settings_of_env_are_seen_also_without_a_program() -> None:
    (found,) = inner_commands("env", ["-i", "A=b=c", "LD_PRELOAD=x"])
    assert (found.command, found.settings) == ("", (("A", "b=c"), ("LD_PRELOAD", "x")))


def test_several_actions_of_find() -> None:
    found = inner_commands("find", ["-exec", "a", ";", "-ok", "b", ";", "-exec"])
    assert [inner.command for inner in found] == ["a", "b"]


@given(
    st.sampled_from(["env", "nice", "timeout", "xargs", "find", "busybox", "sudo", "time", "setsid", "ls"]),
    st.lists(st.text(alphabet="-=abnAuS 05{};", max_size=6) | st.sampled_from(["--", "-", "-n", "-exec", "A=b"])),
)
def test_any_arguments_are_read_or_refused(command: str, args: list[str]) -> None:
    try:
        found = inner_commands(command, args)
    except UnknownOptionError:
        return
    for inner in found:
        assert inner.at is None or inner.at < len(args)


def test_names_of_multi_call_files() -> None:
    assert [is_multi_call(name) for name in ("busybox", "/x/busybox-1.36", "toybox", "coreutils")] == [True] * 4
    assert [is_multi_call(name) for name in ("ls", "coreutils-x", "mybusybox")] == [False] * 3
