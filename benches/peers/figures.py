"""From raw figures to medians and ratios."""

import json
from collections import defaultdict
from statistics import median

import peers
from states import MOST_BYTES, alike


class Figures:
    """The figures of one comparison."""

    def __init__(self, results):
        self.about = json.loads((results / "about.json").read_text())
        # (suite, bytes, dtype, mode) -> peer -> round -> us
        self.times = defaultdict(lambda: defaultdict(dict))
        self.limits = defaultdict(list)
        self.foreign = []
        # The same for the round trips before and after, where they are known.
        self.trips = defaultdict(lambda: defaultdict(dict))
        self.rounds = 0
        with open(results / "raw.jsonl") as file:
            for row in map(json.loads, file):
                self.rounds = max(self.rounds, row["round"] + 1)
                if row["suite"] == "limit":
                    self.limits[row["bytes"]].append(row["us"])
                else:
                    key = (row["suite"], row["bytes"], row["dtype"], row["mode"])
                    self.times[key][row["peer"]][row["round"]] = row["us"]
                    self.foreign.append(row["foreign"])
                    if "line_round_trip_ns" in row:
                        self.trips[key][row["peer"]][row["round"]] = row["line_round_trip_ns"]

    def time(self, key, peer):
        """The median over rounds in us; None if it was not measured."""
        by_round = self.times[key].get(peer) if key in self.times else None
        return median(by_round.values()) if by_round else None

    def limit(self, size):
        """The copy limit of two ranks in us."""
        return median(self.limits[size]) if size in self.limits else None

    def others(self, key):
        """The native libraries that were measured beside Foldcast."""
        if key not in self.times:
            return []
        return [peer.name for peer in peers.PEERS if peer.name in self.times[key] and peer.name != "foldcast"]

    def ratio(self, key, own="foldcast", others=None):
        """Foldcast's time by the best other's of the same round, the median over rounds; None if there is none."""
        if key not in self.times:
            return None
        times = self.times[key]
        others = [other for other in (self.others(key) if others is None else others) if other in times]
        ratios = []
        for number, us in times.get(own, {}).items():
            found = [times[other][number] for other in others if number in times[other]]
            if found:
                ratios.append(us / min(found))
        return median(ratios) if ratios else None

    def ratio_across(self, key, own, other_key, other):
        """The same for two keys, such as out of place against in place where a library has only one."""
        if key not in self.times or other_key not in self.times:
            return None
        mine, theirs = self.times[key].get(own, {}), self.times[other_key].get(other, {})
        ratios = [us / theirs[number] for number, us in mine.items() if number in theirs]
        return median(ratios) if ratios else None

    def unlike(self):
        """Of the other libraries' times of cases that are repeated: how many were not measured in the state of Foldcast's, and of
        how many."""
        found = []
        for (_, size, _, _), by_peer in self.trips.items():
            # Those of Python are not repeated, and "foldcast" is not among them.
            if size > MOST_BYTES or "foldcast" not in by_peer:
                continue
            own = by_peer["foldcast"]
            for name, by_round in by_peer.items():
                if name != "foldcast":
                    found += [not alike(own[number] + trips) for number, trips in by_round.items() if number in own]
        return sum(found), len(found)

    def own_trips(self):
        """The round trips beside Foldcast's small cases."""
        rounds = [
            by_peer["foldcast"]
            for (_, size, _, _), by_peer in self.trips.items()
            if size <= MOST_BYTES and "foldcast" in by_peer
        ]
        return [ns for by_round in rounds for trips in by_round.values() for ns in trips]
