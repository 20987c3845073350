"""``python -m tests.packaging.release`` says whether this commit may be released under its tag. Without a tag it is a
rehearsal.
"""

import re
import subprocess
import sys

import dpcore
from stream.local.kafka import REPO_ROOT

SECTION = re.compile(r"(?m)^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$")
"""Heading of a version in a changelog by Keep a Changelog."""


def problems(version: str, tags: list[str], changes: str, changelog: str) -> list[str]:
    """Why a commit with ``tags`` of versions and uncommitted ``changes`` (git's short status) must not be released."""
    if not tags:
        return []
    reasons = []
    if tags != [f"v{version}"]:
        reasons.append(f"dpcore.__version__ is {version} but the tag is {', '.join(tags)}: write one of them anew")
    if changes:
        reasons.append(f"the work tree has changes: commit or stash them\n{changes}")
    if version not in {match["name"] for match in SECTION.finditer(changelog) if match["date"]}:
        reasons.append(f"CHANGELOG.md has no section '## [{version}] - DATE': turn 'Unreleased' into it")
    return reasons


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print what prevents the release and exit with 1, or print what will be built."""
    tags = _git("tag", "--points-at", "HEAD", "--list", "v*").split()
    changelog = (REPO_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    reasons = problems(dpcore.__version__, tags, _git("status", "--short"), changelog)
    if reasons:
        sys.exit("Not released:\n" + "\n".join(f"- {reason}" for reason in reasons))
    said = f"release {dpcore.__version__}" if tags else f"no tag v{dpcore.__version__} on this commit: a rehearsal"
    print(said, file=sys.stderr)


if __name__ == "__main__":
    main()
