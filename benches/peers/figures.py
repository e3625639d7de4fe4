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
        # (suite, bytes, dtype, mode) -> peer -> round -> us: the median over the turns of the round
        self.times = defaultdict(lambda: defaultdict(dict))
        turns = defaultdict(list)
        self.limits = defaultdict(list)
        self.foreign = []
        # The same, by round and turn, for the round trips before and after, where they are known.
        self.trips = defaultdict(lambda: defaultdict(dict))
        self.rounds = 0
        with open(results / "raw.jsonl") as file:
            for row in map(json.loads, file):
                self.rounds = max(self.rounds, row["round"] + 1)
                if row["suite"] == "limit":
                    self.limits[row["bytes"]].append(row["us"])
                else:
                    key = (row["suite"], row["bytes"], row["dtype"], row["mode"])
                    turns[key, row["peer"], row["round"], row.get("turns", 1)].append(row["us"])
                    self.foreign.append(row["foreign"])
                    if "line_round_trip_ns" in row:
                        turn = (row["round"], row.get("turn", 0))
                        self.trips[key][row["peer"]][turn] = row["line_round_trip_ns"]
        for (key, peer, number, wanted), times in turns.items():
            # Where most turns failed, what is left may be the best or the worst of them.
            if 2 * len(times) > wanted:
                self.times[key][peer][number] = median(times)

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
            for name, by_turn in by_peer.items():
                if name != "foldcast":
                    found += [not alike(own[turn] + trips) for turn, trips in by_turn.items() if turn in own]
        return sum(found), len(found)

    def own_trips(self):
        """The round trips beside Foldcast's small cases."""
        turns = [
            by_peer["foldcast"]
            for (_, size, _, _), by_peer in self.trips.items()
            if size <= MOST_BYTES and "foldcast" in by_peer
        ]
        return [ns for by_turn in turns for trips in by_turn.values() for ns in trips]
