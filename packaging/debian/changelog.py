"""Writes Debian's form of the changelog for users.

    changelog.py CHANGELOG.md PACKAGE VERSION MAINTAINER FILE

VERSION is that of the package, such as 0.2.0-1+deb12; the newest entry of the changelog must be of the version before the '-'.
"""
import email.utils
import datetime
import re
import sys
import textwrap


def entries(text):
    """Yields (version, date, [change]). An entry begins with '## 0.2.0 (2026-11-30)'; its list items are the changes."""
    for match in re.finditer(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        changes = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line[2:]) for line in match.group(3).splitlines() if line.startswith("- ")]
        yield match.group(1), datetime.date.fromisoformat(match.group(2)), changes


def main():
    source, package, version, maintainer, target = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        found = list(entries(file.read()))
    upstream, _, revision = version.rpartition("-")
    if not found or found[0][0] != upstream:
        sys.exit(f"{source}: the newest entry must be '## {upstream} (YYYY-MM-DD)': say there what is new")
    with open(target, "w", encoding="utf-8") as file:
        for number, date, changes in found:
            moment = datetime.datetime.combine(date, datetime.time(12), datetime.timezone.utc)
            text = "\n".join(textwrap.fill(change, 78, initial_indent="  * ", subsequent_indent="    ") for change in changes)
            file.write(f"{package} ({number}-{revision}) unstable; urgency=medium\n\n{text}\n\n"
                       f" -- {maintainer}  {email.utils.format_datetime(moment)}\n\n")


if __name__ == "__main__":
    main()
