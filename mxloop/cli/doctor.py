"""``mxloop doctor``: is everything in place to train? Exit code 1 where something is not."""

import argparse
import json

from mxloop import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("--json", action="store_true", help="findings and facts as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look, and print what was found and what to do."""
    facts = doctor.collect()
    findings = doctor.examine(facts)
    good = all(finding.state != doctor.TROUBLE for finding in findings)
    if args.json:
        told = [finding._asdict() for finding in findings]
        print(json.dumps({"ok": good, "findings": told, "facts": facts}, indent=1))
        return 0 if good else 1
    for finding in findings:
        print(f"{finding.state:8} {finding.told}")
        if finding.remedy:
            print(f"{'':8} -> {finding.remedy}")
    print("mxloop can train here" if good else "mxloop cannot train here yet: see 'trouble' above")
    return 0 if good else 1
