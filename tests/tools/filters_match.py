#!/usr/bin/env python3
"""filters_match.py TEST_BINARY FILTER...: each gtest filter must name a test of the binary. One that names none has rotted."""
import subprocess
import sys

binary, *filters = sys.argv[1:]


def names_a_test(wanted):
    listed = subprocess.run([binary, "--gtest_list_tests", f"--gtest_filter={wanted}"], check=True, stdout=subprocess.PIPE, text=True)
    return any(line.startswith("  ") for line in listed.stdout.splitlines())


rotten = [wanted for wanted in filters if not names_a_test(wanted)]
if rotten:
    sys.exit("no test of {} is called {}".format(binary, ", ".join(rotten)))
