"""Names of the environment that decide which code a program loads, which program is started, or where it connects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from sandboxkit.errors import PolicyError

__all__ = ["as_mapping", "check_environment"]

# Globs. The kernel's loader and libc, shells, interpreters and their package managers, build tools, helpers that
# programs start, places of configuration, certificates and proxies.
LOADING: Final = (
    *("PATH", "LD_*", "DYLD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "HOSTALIASES", "MALLOC_*"),
    *("IFS", "ENV", "BASH_ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "CDPATH", "ZDOTDIR"),
    *("SHELL", "HOME", "XDG_*", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONBREAKPOINT"),
    *("PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX"),
    *("PYTHON_PRESITE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PIP_*", "UV_*", "POETRY_*", "CONDA_*"),
    *("NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "NODE_EXTRA_CA_CERTS", "YARN_*", "DENO_*", "BUN_*"),
    *("PERL5OPT", "PERL5LIB", "PERL5DB", "PERLLIB", "PERL_*", "RUBYOPT", "RUBYLIB", "GEM_*", "BUNDLE_*"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "JAVA_HOME", "CLASSPATH", "MAVEN_*", "GRADLE_*"),
    *(
        "LUA_*",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
        "R_*",
        "CARGO_*",
        "RUSTC*",
        "RUSTUP_*",
        "GOFLAGS",
        "GOTOOLCHAIN",
        "GOPROXY",
    ),
    *("MAKEFLAGS", "MAKEFILES", "GNUMAKEFLAGS", "GIT_*", "SSH_*", "SUDO_*", "DOCKER_*", "EDITOR", "VISUAL", "BROWSER"),
    *(
        "PAGER",
        "MANPAGER",
        "LESSOPEN",
        "LESSCLOSE",
        "OPENSSL_*",
        "SSL_CERT_*",
        "REQUESTS_CA_BUNDLE",
        "CURL_*",
        "WGETRC",
    ),
)
_ANY_CASE: Final = ("*_PROXY", "NPM_CONFIG_*")


def check_environment(names: Iterable[str], allowed: tuple[str, ...] | None) -> None:
    """PolicyError for one that may not be set; `allowed` is ExecPolicy's `allowed_env`."""
    for name in names:
        if allowed is not None:
            if not _matches(name, allowed):
                listed = ", ".join(allowed) or "none"
                raise PolicyError(f"The variable {name!r} may not be set here; allowed: {listed}. Leave it out.")
        elif _matches(name, LOADING) or _matches(name.upper(), _ANY_CASE):
            raise PolicyError(
                f"The variable {name!r} may not be set here, as it changes what programs load or where they connect. "
                "Leave it out, or pass the setting as an argument."
            )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def as_mapping(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """PolicyError for a name that is there twice: which one counts would be a guess."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise PolicyError(f"The variable {name!r} is set twice. Set it once.")
        found[name] = value
    return found
