"""A session's abilities as tools for a language model, each within a policy (`pip install 'sandboxkit[tools]'`).

>>> from sandboxkit.tools import ExecPolicy, create_sandbox_tools
>>> tools = create_sandbox_tools(session, exec=ExecPolicy(allowed_commands=["python"]))  # doctest: +SKIP
>>> tools.call("exec_command", {"command": "python", "args": ["-c", "print(6 * 7)"]}).content  # doctest: +SKIP
'The command exited with 0 after 0.02 s.\\nstdout:\\n42'

What goes wrong because of what the model asked for is a result that it can read; only a lost session raises. Policies
keep a model on its way. What confines what it runs is the container; docs/tools.md has the table of which stops what.
"""

from __future__ import annotations

from ._create import create_sandbox_tools
from ._policies import Deny, ExecPolicy, ExecRequest, ProcessPolicy, ReadFilePolicy, Verdict, WriteFilePolicy
from ._result import ToolResult
from ._tool import Answer, Approve, Tool, Tools

__all__ = [
    "Answer",
    "Approve",
    "Deny",
    "ExecPolicy",
    "ExecRequest",
    "ProcessPolicy",
    "ReadFilePolicy",
    "Tool",
    "ToolResult",
    "Tools",
    "Verdict",
    "WriteFilePolicy",
    "create_sandbox_tools",
]
