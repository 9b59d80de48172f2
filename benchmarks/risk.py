"""How long the risk of each record takes: 10,000 members and 10,000 others, by the slowest of the attacks it may use.

    python benchmarks/risk.py [--records N]

Prints the processor seconds of each setting.
"""

import argparse
import time

from attacks import records
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.data.records import Membership
from scoreveil.audit.study.results import Setting, setting_name
from scoreveil.audit.study.risk import risk

SETTINGS: tuple[Setting, ...] = (("none", None), ("regions", 4.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    count = parser.parse_args().records
    given = Membership(records(count, 0, 1.0), records(count, 1, 0.7))
    for setting in SETTINGS:
        began = time.process_time()
        risk(given, setting, ATTACKS["random_forest_known"])
        print(f"{setting_name(setting):16} {time.process_time() - began:7.1f} s")


if __name__ == "__main__":
    main()
