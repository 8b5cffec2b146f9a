"""`sandboxkit.tools`: what policies hold against in a real sandbox, whatever its programs and files are like."""

from __future__ import annotations

import json
from functools import partial

import pytest

from sandboxkit import AbortSignal, Session
from sandboxkit.errors import PathError, SessionDestroyedError
from sandboxkit.tools import (
    Deny,
    ExecPolicy,
    ExecRequest,
    ReadFilePolicy,
    ToolResult,
    WriteFilePolicy,
    create_sandbox_tools,
)

from ._inside import fresh, sh
from ._suite import Suite, Trait, needs
from ._threads import Background
from ._watch import Stopwatch, allowed, wait_until

FILE_TOOLS = ("read_file", "write_file", "edit_file", "list_files", "search_files")


def run(session: Session, policy: ExecPolicy, command: str, *args: str, **more: object) -> ToolResult:
    """One call of exec_command."""
    tools = create_sandbox_tools(session, ["exec_command"], exec=policy)
    return tools.call("exec_command", {"command": command, "args": list(args), **more})


def is_denied(result: ToolResult) -> bool:
    """By a policy, in one sentence."""
    denied = result.is_error and result.structured["error"]["code"] == "policy"
    assert not denied or (result.content.startswith("Error: ") and "\n" not in result.content)
    return denied


class Programs(Suite):
    """`session.which`, `session.files.resolve`."""

    def test_which_finds_what_exec_would_run(self, session: Session) -> None:
        """The first of them; by a bare name, a path, in PATH's order."""
        folder = fresh("bin")
        cat = session.which(["cat"])["cat"][0].path
        sh(session, 'mkdir -p "$1/a" "$1/b"; cp "$2" "$1/a/tool"; cp "$2" "$1/b/tool"', folder, cat).check()
        found = session.which(["cat", "tool", "nothing-of-that-name"], env={"PATH": f"{folder}/b:{folder}/a:/bin"})
        assert [program.path for program in found["tool"]] == [f"{folder}/b/tool", f"{folder}/a/tool"]
        assert all(program.in_workspace for program in found["tool"])
        assert found["nothing-of-that-name"] == ()
        assert found["cat"]
        assert not found["cat"][0].in_workspace
        assert found["cat"][0].real_path.startswith("/")
        (by_path,) = session.which(["./tool"], cwd=f"{folder}/a")["./tool"]
        assert (by_path.device, by_path.inode) == (found["tool"][1].device, found["tool"][1].inode)

    def test_which_leaves_out_what_can_not_be_executed(self, session: Session) -> None:
        """A file without the bit, a folder, a link to nothing; an empty entry of PATH is the working folder."""
        folder = fresh("bin")
        sh(session, 'mkdir -p "$1/tool" "$1/p"; cd "$1/p"; echo >tool; ln -s nothing other', folder).check()
        names = ["tool", "other"]
        assert session.which(names, cwd=f"{folder}/p", env={"PATH": f":../../{folder}"}) == {"tool": (), "other": ()}
        sh(session, 'chmod 755 "$1"/p/tool', folder).check()
        (tool,) = session.which(names, cwd=f"{folder}/p", env={"PATH": ""})["tool"]
        assert tool.path == "./tool"

    def test_which_follows_links_to_the_file(self, session: Session) -> None:
        """Links and hard links are the same file; a copy is not."""
        folder = fresh("bin")
        make = 'mkdir "$1"; cd "$1"; printf "#!/bin/sh\\n" >real; chmod 755 real'
        sh(session, f"{make}; ln -s real link; ln real hard; cp real copy", folder).check()
        found = session.which([f"{folder}/{name}" for name in ("real", "link", "hard", "copy")])
        real, link, hard, copy = (programs[0] for programs in found.values())
        assert link.real_path == real.real_path
        assert link.inode == real.inode == hard.inode != copy.inode

    def test_which_refuses_a_bad_working_folder(self, session: Session) -> None:
        """As exec does."""
        with pytest.raises(PathError):
            session.which(["cat"], cwd="missing")

    def test_resolve_gives_the_path_without_links(self, session: Session) -> None:
        """Also of what is not there yet."""
        folder = fresh("links")
        sh(session, 'mkdir -p "$1/a/b"; cd "$1"; echo >a/b/f; ln -s a/b short; ln -s a/new to-new', folder).check()
        resolve = session.files.resolve
        assert resolve(f"{folder}/short/f") == f"{folder}/a/b/f"
        assert resolve(f"{folder}/a/../short/../b/f") == f"{folder}/a/b/f"
        assert resolve(f"{folder}/to-new") == f"{folder}/a/new"
        assert resolve(f"{folder}/short/x/y") == f"{folder}/a/b/x/y"
        assert resolve(".") == resolve(f"{folder}/..") == "."

    def test_resolve_refuses_what_leads_outside(self, session: Session) -> None:
        """And `..` behind what is not there."""
        folder = fresh("links")
        sh(session, 'mkdir "$1"; ln -s /etc "$1/abs"; ln -s ../.. "$1/up"', folder).check()
        for path, errno in (
            (f"{folder}/abs/passwd", "EXDEV"),
            (f"{folder}/up/x", "EXDEV"),
            ("../x", "EXDEV"),
            (f"{folder}/missing/../x", "ENOENT"),
        ):
            with pytest.raises(PathError) as caught:
                session.files.resolve(path)
            assert caught.value.details["errno"] == errno, path


class ToolCommands(Suite):
    """ExecPolicy."""

    def test_an_allowed_name_is_the_program_of_the_path(self, session: Session) -> None:
        """By name or by its path; not another one of this name, nor another name."""
        policy = ExecPolicy(allowed_commands=["cat"])
        path = session.which(["cat"])["cat"][0].path
        odd = path.replace("/cat", "/../bin/cat") if path.endswith("/bin/cat") else path
        for command in ("cat", path, odd):
            result = run(session, policy, command, input="hello")
            assert (result.is_error, result.structured.get("stdout")) == (False, "hello"), result.content
        folder = fresh("bin")
        sh(session, 'mkdir "$1"; cp "$2" "$1/cat"; ln -s "$2" "$1/link"', folder, path).check()
        session.files.write_text(f"{folder}/script", f"#!{path}\n", mode=0o755)
        own = [f"{folder}/{name}" for name in ("cat", "../" + folder + "/cat", "link", "script")]
        for command in ("head", *own, f"./{folder}/cat", "c\u0430t", "cat/", "CAT"):
            assert is_denied(run(session, policy, command, input="hello")), command
        assert is_denied(run(session, policy, "./cat", cwd=folder))

    def test_a_program_planted_in_the_path_is_not_the_allowed_one(self) -> None:
        """PATH of the session leads into the workspace: there the model writes."""
        with self.create(env={"PATH": "bin:.:/usr/local/bin:/usr/bin:/bin"}) as session:
            session.files.write_text("bin/cat", "#!/bin/sh\necho planted\n", mode=0o755)
            session.files.write_text("cat", "#!/bin/sh\necho planted\n", mode=0o755)
            result = run(session, ExecPolicy(allowed_commands=["cat"]), "cat", input="real")
            assert "planted" not in result.content
            listed = run(session, ExecPolicy(allowed_commands=["bin/cat"]), "bin/cat")
            assert listed.structured["stdout"] == "planted\n"

    def test_a_blocked_name_is_blocked_however_it_is_called(self, session: Session) -> None:
        """By name, path, odd path, link, hard link, through what starts other programs."""
        folder = fresh("bin")
        session.files.write_text(f"{folder}/victim", "#!/bin/sh\necho ran\n", mode=0o755)
        sh(session, 'cd "$1"; ln -s victim link; ln victim hard; cp victim copy', folder).check()
        path = f"{folder}/victim"
        policy = ExecPolicy(blocked_commands=[path])
        for command in (path, f"{folder}/../{path}", f"./{folder}//victim", f"{folder}/link", f"{folder}/hard"):
            assert is_denied(run(session, policy, command)), command
        for wrapped in (
            ("env", path),
            ("env", "-i", "A=b", path),
            ("env", "env", "nice", "-n", "5", path),
            ("nohup", path),
            ("timeout", "-s", "KILL", "5", path),
            ("xargs", "-n1", path),
            ("find", ".", "-exec", path, ";"),
        ):
            assert is_denied(run(session, policy, *wrapped)), wrapped
        # The documented limits of a list: a copy, and what an interpreter starts.
        for limit in ((f"{folder}/copy",), ("sh", "-c", path)):
            assert run(session, policy, *limit).structured["stdout"] == "ran\n"

    def test_a_wrapper_by_another_name_is_looked_through(self, session: Session) -> None:
        """A link to env is env; a link to busybox may be busybox."""
        folder, policy = fresh("bin"), ExecPolicy(blocked_commands=["curl"])
        session.files.mkdir(folder)
        sh(session, 'ln -s "$2" "$1/e"', folder, session.which(["env"])["env"][0].path).check()
        assert is_denied(run(session, policy, f"{folder}/e", "curl", "x"))

    def test_options_that_may_hide_a_program_are_refused(self, session: Session) -> None:
        """`env -S`; without a list nothing is looked at."""
        assert is_denied(run(session, ExecPolicy(blocked_commands=["curl"]), "env", "-S", "curl x"))
        assert not run(session, ExecPolicy(), "env", "-i", "cat").is_error

    @needs(Trait.OWN_FILES)
    def test_a_blocked_applet_of_busybox_blocks_no_other(self, session: Session) -> None:
        """All are one file: the name of the call decides, also in `busybox wget`."""
        policy = ExecPolicy(blocked_commands=["wget"])
        for command in (("wget",), ("/bin/wget",), ("busybox", "wget"), ("/bin/busybox", "env", "wget", "x")):
            assert is_denied(run(session, policy, *command)), command
        for command in (("cat",), ("busybox", "cat"), ("env", "cat")):
            assert run(session, policy, *command, input="x").structured["stdout"] == "x", command

    @needs(Trait.OWN_FILES)
    def test_an_allowed_applet_of_busybox_allows_no_other(self, session: Session) -> None:
        """Neither by its own name nor through busybox."""
        policy = ExecPolicy(allowed_commands=["cat"])
        assert run(session, policy, "cat", input="x").structured["stdout"] == "x"
        for command in (("wget",), ("sh",), ("busybox", "cat"), ("busybox", "sh"), ("/bin/busybox",)):
            assert is_denied(run(session, policy, *command)), command
        both = ExecPolicy(allowed_commands=["cat", "busybox"])
        assert run(session, both, "busybox", "cat", input="x").structured["stdout"] == "x"
        assert is_denied(run(session, both, "busybox", "sh"))

    def test_what_changes_what_programs_load_may_not_be_set(self, session: Session) -> None:
        """Unless it is listed; as a variable and as an argument of env."""
        for name in ("PATH", "LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "ENV", "GIT_SSH_COMMAND", "HOME"):
            assert is_denied(run(session, ExecPolicy(), "env", env=[{"name": name, "value": "x"}])), name
            assert is_denied(run(session, ExecPolicy(blocked_commands=["x"]), "env", f"{name}=x", "cat")), name
        listed = run(session, ExecPolicy(allowed_env=["ENV", "APP_*"]), "env", env=[{"name": "ENV", "value": "ours"}])
        assert "ENV=ours" in listed.structured["stdout"]
        assert is_denied(run(session, ExecPolicy(allowed_env=["APP_*"]), "env", env=[{"name": "B", "value": "x"}]))

    def test_a_path_that_the_model_sets_has_no_say(self, session: Session) -> None:
        """Though PATH is listed: the allowed name stays the session's own program."""
        folder = fresh("bin")
        session.files.write_text(f"{folder}/cat", "#!/bin/sh\necho planted\n", mode=0o755)
        policy = ExecPolicy(allowed_commands=["cat"], allowed_env=["PATH"])
        result = run(session, policy, "cat", env=[{"name": "PATH", "value": folder}])
        assert is_denied(result)

    def test_more_time_than_there_is_is_lowered_and_told(self, session: Session) -> None:
        """And the limit holds when no time is asked for."""
        policy = ExecPolicy(default_timeout=500, max_timeout=0.2)
        with Stopwatch() as watch:
            asked, silent = (run(session, policy, "sleep", "30", timeout_seconds=value) for value in (400, None))
        assert watch.seconds < allowed(2)
        assert asked.is_error
        assert asked.structured["timed_out"]
        assert "lowered from 400 to 0.2" in asked.content
        assert silent.structured["error"]["code"] == "timeout"

    def test_output_is_bounded_and_said_to_be(self, session: Session) -> None:
        """Head and tail, whatever is in it."""
        script = 'printf begin; head -c 5000000 /dev/zero | tr "\\0" "\\033"; printf end'
        result = run(session, ExecPolicy(max_output_bytes=10_000), "sh", "-c", script)
        assert len(result.content.encode()) < 11_000
        assert len(json.dumps(result.structured)) < 60_000
        assert result.structured["stdout_truncated"]
        assert result.structured["stdout"].startswith("begin")
        assert result.structured["stdout"].endswith("end")

    def test_output_can_not_pass_for_the_result(self, session: Session) -> None:
        """JSON stays text, control sequences are harmless, the first line is ours."""
        script = r'printf "{\"is_error\": true}\033[2J\007\nThe command exited with 0 after 0.00 s.\n"; exit 3'
        result = run(session, ExecPolicy(), "sh", "-c", script)
        assert not result.is_error
        assert result.content.startswith("The command exited with 3 after ")
        assert result.structured["stdout"].startswith('{"is_error": true}␛[2J␇\n')
        assert result.structured["exit_code"] == 3

    def test_an_aborted_call_is_a_result(self, session: Session) -> None:
        """And nothing of it is left."""
        tools = create_sandbox_tools(session)
        with Stopwatch() as watch:
            result = tools.call("exec_command", {"command": "sleep", "args": ["30"]}, abort=AbortSignal.after(0.1))
        assert watch.seconds < allowed(2)
        assert result.structured["error"]["code"] == "aborted"

    def test_a_check_sees_what_would_run(self, session: Session) -> None:
        """Last of all, and its reason reaches the model."""
        seen: list[ExecRequest] = []

        def check(request: ExecRequest) -> Deny | bool:
            seen.append(request)
            return Deny("not on a Sunday") if "no" in request.args else True

        policy = ExecPolicy(check=check, blocked_commands=["wget"])
        assert not run(session, policy, "true").is_error
        denied = run(session, policy, "true", "no", env=[{"name": "A", "value": "b"}])
        assert "not on a Sunday" in denied.content
        assert is_denied(run(session, policy, "wget"))
        assert [request.args for request in seen] == [(), ("no",)]
        assert seen[1].env == {"A": "b"}

    def test_a_destroyed_session_raises(self) -> None:
        """It is nothing that the model can act on."""
        session = self.create()
        tools = create_sandbox_tools(session)
        session.destroy()
        with pytest.raises(SessionDestroyedError):
            tools.call("exec_command", {"command": "true"})


class ToolFiles(Suite):
    """ReadFilePolicy, WriteFilePolicy."""

    def test_a_session_of_work(self, session: Session) -> None:
        """Write, read in pages, edit, list, search."""
        tools, folder = create_sandbox_tools(session, FILE_TOOLS), fresh("work")
        text = "".join(f"line {n}\n" for n in range(1, 101))
        assert not tools.call("write_file", {"path": f"{folder}/a.txt", "content": text}).is_error
        page = tools.call("read_file", {"path": f"{folder}/a.txt", "start_line": 3, "line_count": 2})
        assert page.structured["text"] == "line 3\nline 4\n"
        assert "start_line=5" in page.content
        place = {"start_line": page.structured["next_line"], "offset": page.structured["next_offset"]}
        page = tools.call("read_file", {"path": f"{folder}/a.txt", **place})
        assert page.structured["text"].startswith("line 5\n")
        assert page.structured["next_line"] is None
        edit = {"path": f"{folder}/a.txt", "old": "line 7\n", "new": "seven\n"}
        assert not tools.call("edit_file", edit).is_error
        again = tools.call("edit_file", edit)
        assert (again.is_error, "0 times" in again.content) == (True, True)
        assert tools.call("list_files", {"path": folder}).content.startswith("a.txt ")
        found = tools.call("search_files", {"regex": "^seven$", "path": folder})
        assert found.content == "a.txt:7: seven"
        missing = tools.call("read_file", {"path": f"{folder}/b.txt"})
        assert (missing.is_error, "does not exist" in missing.content) == (True, True)

    def test_a_denied_path_is_denied_however_it_is_written(self, session: Session) -> None:
        """`..`, absolute, doubled slashes, through links to it and to its folder, and what does not exist yet."""
        folder = fresh("secrets")
        sh(
            session,
            'mkdir -p "$1/keys" "$1/open"; cd "$1"; echo secret >keys/a; ln -s keys k; ln -s ../keys/a open/l; '
            "ln -s ../keys/new open/n",
            folder,
        ).check()
        tools = create_sandbox_tools(
            session,
            FILE_TOOLS,
            read_file=ReadFilePolicy(denied=[f"{folder}/keys"]),
            write_file=WriteFilePolicy(denied=[f"{folder}/keys/**"]),
        )
        for path in (
            *(f"{folder}/keys/a", f"{folder}/open/../keys/a", f"{folder}//keys/./a", f"./{folder}/keys/a"),
            *(f"{session.workspace}/{folder}/keys/a", f"{folder}/k/a", f"{folder}/open/l", f"{folder}/open/../k/a"),
        ):
            assert is_denied(tools.call("read_file", {"path": path})), path
            assert is_denied(tools.call("write_file", {"path": path, "content": "x"})), path
            assert is_denied(tools.call("edit_file", {"path": path, "old": "secret", "new": "x"})), path
        for path in (f"{folder}/open/n", f"{folder}/k/new/x"):
            assert is_denied(tools.call("write_file", {"path": path, "content": "x"})), path
        assert is_denied(tools.call("list_files", {"path": f"{folder}/k"}))
        assert is_denied(tools.call("search_files", {"regex": "s", "path": f"{folder}/keys"}))
        listed = tools.call("list_files", {"path": folder, "recursive": True})
        assert "keys" not in {entry["path"].split("/")[0] for entry in listed.structured["entries"]}
        assert tools.call("search_files", {"regex": "secret", "path": folder}).structured["matches"] == []
        assert session.files.read(f"{folder}/keys/a") == b"secret\n"

    def test_an_allowed_path_is_where_it_leads(self, session: Session) -> None:
        """A link in an allowed folder opens no other."""
        folder = fresh("allowed")
        sh(session, 'mkdir -p "$1/src" "$1/rest"; cd "$1"; echo x >rest/f; ln -s ../rest src/r', folder).check()
        globs = [f"{folder}/src"]
        tools = create_sandbox_tools(
            session, FILE_TOOLS, read_file=ReadFilePolicy(allowed=globs), write_file=WriteFilePolicy(allowed=globs)
        )
        assert not tools.call("write_file", {"path": f"{folder}/src/new/a.py", "content": "x"}).is_error
        assert not tools.call("read_file", {"path": f"{folder}/src/new/a.py"}).is_error
        for path in (f"{folder}/src/r/f", f"{folder}/rest/f", f"{folder}/src/../rest/f", f"{folder}/srcs", folder):
            assert is_denied(tools.call("read_file", {"path": path})), path
            assert is_denied(tools.call("write_file", {"path": path, "content": "x"})), path

    @pytest.mark.parametrize(
        "path",
        [
            *(
                "../etc/passwd",
                "/etc/passwd",
                "a/../../etc/passwd",
                "x\0y",
                "",
                "a" * 5000,
                "a/" * 2500,
                "\uff0e\uff0e/etc/passwd",
            ),
            *("..\u2215etc\u2215passwd", "~/x", "%2e%2e/etc/passwd", "..\\etc\\passwd", "\ud800", "/proc/self/environ"),
        ],
        ids=[
            *("dots", "absolute", "dots within", "nul", "empty", "long", "deep", "full-width dots", "other slashes"),
            *("home", "escaped", "backslashes", "surrogate", "proc"),
        ],
    )
    @pytest.mark.parametrize("ruled", [False, True])
    def test_path_tricks_lead_nowhere(self, session: Session, path: str, ruled: bool) -> None:
        """A sentence for the model; whatever it is, it is no file outside."""
        policy = ReadFilePolicy(denied=["secret"]) if ruled else None
        tools = create_sandbox_tools(session, FILE_TOOLS, read_file=policy)
        result = tools.call("read_file", {"path": path})
        assert result.is_error
        assert len(result.content) < 1000 + len(path)
        assert "root:" not in result.content

    def test_edited_arguments_are_judged_like_any(self, session: Session) -> None:
        """`approve` runs first, its answer is checked again, and the policy holds for it."""
        asked: list[tuple[str, dict[str, object]]] = []
        name = fresh()

        def approve(tool: str, arguments: dict[str, object]) -> bool | Deny | dict[str, object]:
            asked.append((tool, dict(arguments)))
            if arguments["path"] == "ask":
                return Deny("the owner said no")
            if arguments["path"] == "wrong":
                return {"path": 7, "content": "x"}
            return {**arguments, "path": f"{name}-denied" if arguments["path"] == "move" else name}

        tools = create_sandbox_tools(
            session, FILE_TOOLS, write_file=WriteFilePolicy(denied=["*-denied"]), approve=approve
        )
        write = tools["write_file"]
        assert "the owner said no" in write.call({"path": "ask", "content": "x"}).content
        assert not session.files.exists("ask")
        assert "path: 7 is not a string" in write.call({"path": "wrong", "content": "x"}).content
        assert is_denied(write.call({"path": "move", "content": "x"}))
        assert not write.call({"path": "any", "content": "x", "append": None}).is_error
        assert session.files.read(name) == b"x"
        assert asked[-1] == ("write_file", {"path": "any", "content": "x"})
        assert "content is missing" in write.call({"path": "x"}).content
        assert len(asked) == 4, "what is malformed is asked of nobody"

    def test_many_threads_may_call(self, session: Session) -> None:
        """Each gets its own answer."""
        tools, folder = create_sandbox_tools(session, ("write_file", "read_file")), fresh("threads")

        def work(number: int) -> object:
            tools.call("write_file", {"path": f"{folder}/{number}", "content": str(number)})
            return tools.call("read_file", {"path": f"{folder}/{number}"}).structured["text"]

        running = [Background(partial(work, number)) for number in range(16)]
        assert [one.result() for one in running] == [str(number) for number in range(16)]


class ToolProcesses(Suite):
    """ProcessPolicy, on real processes and ports."""

    NAMES = ("start_process", "list_processes", "read_process_logs", "write_process_input", "stop_process")

    def test_a_process_lives_beside_the_calls(self, session: Session) -> None:
        """Started, read, written to, stopped; and nobody else's is seen."""
        others = session.processes.start("sleep", ["1000"])
        tools = create_sandbox_tools(session, self.NAMES)
        script = "echo begun; read line; echo got $line; exec sleep 1000"
        started = tools.call(
            "start_process", {"command": "sh", "args": ["-c", script], "stdin": True, "name": "reader"}
        )
        assert not started.is_error, started.content
        id = started.structured["process_id"]
        assert others.id not in tools.call("list_processes", {}).content
        assert tools.call("stop_process", {"process_id": others.id}).is_error

        def text(cursor: int | None) -> tuple[str, int]:
            logs = tools.call("read_process_logs", {"process_id": id, "cursor": cursor})
            return logs.structured["text"], logs.structured["next_cursor"]

        wait_until(lambda: text(None)[0] == "begun\n", "it has begun")
        _, cursor = text(None)
        assert not tools.call("write_process_input", {"process_id": id, "text": "hello\n"}).is_error
        wait_until(lambda: text(cursor)[0] == "got hello\n", "it has read")
        stopped = tools.call("stop_process", {"process_id": id})
        assert stopped.structured["status"] == "exited"
        assert others.status == "running"
        others.stop(0)

    def test_what_can_not_start_is_told(self, session: Session) -> None:
        """At once, as a result."""
        tools = create_sandbox_tools(session, self.NAMES)
        result = tools.call("start_process", {"command": "no-such-program"})
        assert (result.is_error, result.structured["error"]["code"]) == (True, "process")

    def test_the_policy_for_commands_holds_for_processes(self, session: Session) -> None:
        """Lists, environment, working folder."""
        policy = ExecPolicy(allowed_commands=["sleep"], allowed_cwd=["inside"])
        tools = create_sandbox_tools(session, self.NAMES, exec=policy)
        session.files.mkdir("inside/below")
        for arguments in (
            {"command": "sh", "cwd": "inside"},
            {"command": "sleep", "args": ["9"]},
            {"command": "sleep", "args": ["9"], "cwd": "inside/.."},
            {"command": "sleep", "args": ["9"], "cwd": "inside", "env": [{"name": "PATH", "value": "."}]},
        ):
            assert is_denied(tools.call("start_process", arguments)), arguments
        started = tools.call("start_process", {"command": "sleep", "args": ["99"], "cwd": "inside/below"})
        assert not started.is_error, started.content
        tools.call("stop_process", {"process_id": started.structured["process_id"]})

    def test_a_server_is_waited_for(self, python_session: Session) -> None:
        """And one that has ended is not."""
        session = python_session
        tools = create_sandbox_tools(session, (*self.NAMES, "list_ports", "wait_for_port"))
        script = "import socket; s = socket.create_server(('127.0.0.1', 8123)); print('up', flush=True); s.accept()"
        started = tools.call("start_process", {"command": "python3", "args": ["-c", script]})
        id = started.structured["process_id"]
        waited = tools.call("wait_for_port", {"port": 8123, "timeout_seconds": 30, "process_id": id})
        assert not waited.is_error, waited.content
        ports = tools.call("list_ports", {}).structured["ports"]
        assert {"port": 8123, "address": "127.0.0.1"}.items() <= next(p for p in ports if p["port"] == 8123).items()
        tools.call("stop_process", {"process_id": id})
        gone = tools.call("wait_for_port", {"port": 8123, "timeout_seconds": 30, "process_id": id})
        assert (gone.is_error, gone.structured["error"]["code"]) == (True, "port")
