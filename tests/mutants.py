"""Mutants of the round protocol, each of which the tests must notice: `make mutants`, or

python tests/mutants.py                 all of them, on all cores
python tests/mutants.py membership nearly   those whose file or sentence has one of these words in it

A mutant is a copy of the package in which one place of one file is changed. Its killers are the unit tests of the protocol, then simulated
schedules with fixed seeds, then long ones. A mutant that survives shows a missing test; one that nobody can notice does not belong here.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "epidemic"
UNITS = ("test_rounds", "test_membership", "test_greeting", "test_mailbox")
FIRST = {
    "mailbox": "test_mailbox",
    "adaptive_timeout": "test_mailbox",
    "membership": "test_membership",
    "greeting": "test_greeting",
}
"""By file: the unit tests that are most likely to notice."""
SCHEDULES, LONG = 400, 16
SECONDS = 240
"""Of processor time that a killer may take; a mutant that takes longer hangs, and is noticed by that."""


@dataclass(frozen=True)
class Mutant:
    """One change."""

    file: str  # a module of protocol
    old: str  # occurs once in it
    new: str
    breaks: str  # one sentence

    @property
    def path(self):
        return Path("protocol") / f"{self.file}.py"

    def applied(self, text):
        """The text of its file, changed."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}.py: {self.old!r} occurs {found} times, not once ({self.breaks})")
        return text.replace(self.old, self.new)


M = Mutant
MUTANTS = [
    # -- rounds ---------------------------------------------------------------------------------------------------------
    M("rounds", "if event.graph != view.graph:", "if False:", "A message with a wrong graph counts."),
    M("rounds", "if rules.cap is None and view.expected is not None and event.sender not in view.expected:", "if False:",
      "What somebody unexpected sends too late is taken for a late message."),
    M("rounds", "if not 0 <= event.round < rules.rounds:", "if event.round < 0:",
      "A message of a round beyond the last one is no longer implausible."),
    M("rounds", "self.questions.ask_again(missing & alive)", "pass", "Messages that do not come are never asked for."),
    M("rounds", "self._ask_at = self.now + ASK_AGAIN", "self._ask_at = self.now",
      "Who answered that it has nothing yet is asked again at once."),
    M("rounds", "held = membership.worth_waiting_for(absent, self.round, now)", "held = frozenset()",
      "A node that hears nobody waits no longer than usual."),
    M("rounds", "if membership.far_behind(self.round - LEAD, now):", "if False:", "A node far ahead of the others does not wait."),
    M("rounds", "usual = self.rules.deadline if held", "usual = self.adaptive_timeout.limit if held",
      "A node that is alone waits no longer than usual."),
    M("rounds", "over = not missing", "over = not missing or self.now - self.began >= self.rules.deadline",
      "A barrier closes on the deadline."),
    M("rounds", "if self.rules.close.carries and", "if", "Late messages are carried although they are to be dropped."),
    M("rounds", "mixed.setdefault(sender, (message, self.round - round))", "mixed[sender] = (message, self.round - round)",
      "A carried message counts instead of a fresh one."),
    M("rounds", "        self._carried = {}\n        inputs", "        inputs", "A carried message counts in every round."),
    M("closing_rules", "return max(1, round(self.seconds * 1e6))", "return min(usual, round(self.seconds * 1e6))",
      "A fixed deadline adapts."),
    M("closing_rules", "return heard >= self.needed(expected)", "return expected >= self.needed(expected)",
      "A quorum counts those who are expected instead of those who are heard."),
    M("rounds", "if missing and not held and not membership.punctual(missing):", "if False:",
      "Who is usually late is waited for as long as the others."),
    M("rounds", 'self.go_to(min(front + 1, last), "with its own model")', 'self.go_to(min(front + 2, last), "with its own model")',
      "A node that was left behind jumps a round too far."),
    M("rounds", "front, last = self._front(), self.rules.rounds - 1",
      "front, last = self.membership.furthest(self.now), self.rules.rounds - 1", "A node jumps without witnesses."),
    M("rounds", "self.membership.nearly(event.sender)", "pass", "Who was missed and is a little late is not waited for again."),
    M("rounds", 'elif outcome == "late" and since is not None:', 'elif outcome in ("late", "duplicate") and since is not None:',
      "Repeated messages move the pace."),
    M("rounds", 'if outcome in ("counted", "early"):', 'if outcome in ("counted", "early", "late"):',
      "A late message is as good as one in time."),
    M("rounds", "self.count.lonely += expected > 0 and not heard", "pass", "Rounds without a message are not counted as lonely."),
    M("rounds", "deque(maxlen=RECENT)", "deque()", "What recent rounds brought is remembered for ever."),
    M("rounds", "self.count.lost += len(missing)", "pass", "Messages that were waited for in vain are not counted."),
    M("rounds", "for round, since in self._ready.items() if round > self.round - 8}", "for round, since in self._ready.items()}",
      "When rounds were waited in is remembered for ever."),
    M("rounds", "there = tuple(node_id for node_id in view.targets if node_id in alive)", "there = view.targets",
      "Messages are sent to nodes that are not there."),
    M("rounds", "if self._front_is_vague and self.locate.ask_for_front():", "if False:",
      "A node that may have been left behind sends in a round that is over."),
    M("rounds", "if rules.cap is not None and heard >= rules.cap:", "if rules.cap is not None and heard > rules.cap:",
      "A node waits for one message more than its cap."),
    M("rounds", "if self._overtaken(wanted) or self.membership", "if self.membership",
      "A round goes on although the senders have moved on."),
    M("rounds", "if self.membership.away(node_id, self.now, self.began) > self.rules.patience:",
      "if self.membership.away(node_id, self.now, self.began) > 0:", "A barrier has no patience with who is away."),
    M("rounds", "self.mailbox.excuse(self.round, node_id)", "pass", "Who says that it has no message is waited for all the same."),
    M("rounds", 'self.wake("wait", self.now + max(1, min(TICK, left)))', "pass", "The timer of a wait is not set."),
    M("rounds", "return BEHIND if self.membership.witnesses(self.now) > 2 else BEHIND + 1", "return BEHIND",
      "In small networks a node leaves out rounds where two others are ahead for a moment."),
    M("rounds", "expected = expected if cap is None else min(cap, expected)", "pass", "More messages are expected than the cap lets in."),
    M("rounds", 'if self.coin is None or outcome not in ("early", "duplicate") or event.round <= here + NEAR:', "if True:",
      "With a committed coin a message sent early says where its sender is."),
    M("rounds", "return here >= max(2, (rounds * len(self.view(self.round).targets) + 1) // 2 + more)", "return here >= 2",
      "With a committed coin two early messages show that the others have gone on."),
    M("rounds", "over = since is None and event.round < here", "over = False", "Hashes are spent on rounds that are over for long."),
    # -- commitment -----------------------------------------------------------------------------------------------------
    M("commitment", "if known.spent > self._rounds:", "if False:", "A sender may cost any number of hashes."),
    M("commitment", "known.round, known.link = round, link", "pass", "A link that was seen is not remembered."),
    M("commitment", 'return None if self._node in self._targets(sender, round, link) else "not-drawn"', "return None",
      "A message of somebody who has not drawn this node counts."),
    # -- roster ---------------------------------------------------------------------------------------------------------
    M("membership", "max(1, min(self._wanted or max(2, -(-len(self._votes) // 3)), possible))", "1", "One witness is enough."),
    M("membership", "self._wanted or max(2, -(-len(self._votes) // 3))", "self._wanted or 2",
      "Two witnesses are enough, however many carriers there are."),
    M("membership", "found[peer.carrier] = own.round", "found[node_id] = peer.round",
      "Node ids are witnesses instead of carriers."),
    M("membership", "            if peer.token == self.token:\n                continue\n", "", "The own process is a witness."),
    M("membership", " or not own.shown:", ":", "Who was never shown as its own carrier is a witness."),
    M("membership", "if own is None or own.carrier != peer.carrier or", "if own is None or",
      "Node ids that name each other as carriers are two witnesses."),
    M("membership", "alive, found = self.alive(now), dict[int, int]()", "alive, found = frozenset(self._peers), dict[int, int]()",
      "The dead are witnesses."),
    M("membership", "return peer is None or self._vain(peer, now) >= self._deadline", "return peer is None",
      "A silent peer is never given up."),
    M("membership", "return peer is None or self._vain(peer, now) >= self._deadline", "return True", "Everybody is given up."),
    M("membership", "return max(0, peer.vain - max(0, now - peer.vain_at) // REGAINED)", "return peer.vain",
      "Who was given up is given up for ever."),
    M("membership", "peer.missed = peer.vain = 0", "peer.vain = 0", "Who is heard again is still not waited for."),
    M("membership", " and peer.missed < MOST_MISSED:", ":", "Who was missed again and again is waited for in every round."),
    M("membership", "peer.since <= round and ", "", "Messages of rounds before a peer took part are waited for."),
    M("membership", "elif len(tokens) < MOST_TOKENS:", "else:", "A place may show any number of tokens."),
    M("membership", "if node_id in self._void:", "if False:", "Void certificates are ignored."),
    M("membership", "if not (-1 <= handshake.round <= self._rounds and 0 <= handshake.start <= self._rounds):",
      "if not 0 <= handshake.start <= self._rounds:", "The round of a hello is not bounded."),
    M("membership", "if not same and not shown and (present or handshake.differs):", "if False:",
      "An old hello that somebody else repeats is believed."),
    M("membership", "if peer is not None and round > peer.round:", "if peer is not None:", "A peer goes back to an earlier round."),
    M("membership", " and now - peer.heard <= STILL_HEARD:", ":", "Who was heard once without being shown is alive for ever."),
    M("membership", "missed = 0 if peer is None else peer.missed", "missed = 0", "A new start makes up for what was missed."),
    M("membership", "return bool(votes) and votes[min(2, len(votes)) - 1] <= round", "return bool(votes) and votes[0] <= round",
      "One liar keeps a node that is far ahead from waiting."),
    M("membership", "if self._peers[p].round <= round and not self.given_up(p, now))", "if not self.given_up(p, now))",
      "Who is alone waits for those that are ahead."),
    # -- mailbox --------------------------------------------------------------------------------------------------------
    M("mailbox", "if round < self.round or (round == self.round and self._taken):", "if round < self.round:",
      "A message that comes after its round was taken counts."),
    M("mailbox", "if self._expected is not None and sender not in self._expected:", "if False:",
      "A message of somebody unexpected counts."),
    M("mailbox", '        self._early[round, sender] = message\n        return "early"', '        return "early"',
      "Early messages are dropped."),
    M("mailbox", "        if round == self.round:\n            if sender", "        if round >= self.round:\n            if sender",
      "Early messages count at once."),
    M("mailbox", "        seen.add(sender)\n", "", "Who was heard in a round is not remembered."),
    M("mailbox", '            if sender in self._messages:\n                return "duplicate"\n', "", "A message counts twice."),
    M("mailbox", 'Counter({k: v for k, v in (tally or {}).items() if k != "early"})', "Counter()",
      "The tally is not kept over a restart."),
    M("mailbox", " or len(self._early) >= self._room:", ":", "Any number of early messages is kept."),
    M("mailbox", "len(promised) >= self._cap:", "len(promised) > self._cap:", "One message more than the cap is promised a place."),
    M("mailbox", 'self.tally["counted"] -= skipped', "pass", "Messages of a round that was left are in two tallies."),
    M("mailbox", "for of, senders in self._seen.items() if of > round - REMEMBERED}", "for of, senders in self._seen.items()}",
      "Who was heard is remembered for ever."),
    # -- member, people, search, giving ---------------------------------------------------------------------------------
    M("member", "if not self.now < self._timers.get(name, 0) <= at:", "if name not in self._timers:", "A timer is set only once."),
    M("member", "if now - self._told_end > TELL_END:", "if False:", "A node says only once that it has finished."),
    M("member", "over = membership.alive(now) <= membership.finished or now - self.began >= max(LINGER, self.rules.deadline)",
      "over = now - self.began >= max(LINGER, self.rules.deadline)", "Nodes that have finished are still waited for."),
    M("member", 'over = self.phase in ("lingering", "left")', "over = False", "A node does not say that it has finished."),
    M("member", "return [Answer(event.reply, NOTHING)]", "return []", "A node that has finished answers nobody."),
    M("introductions", "self._tell_from = node.now + SECOND", "pass", "Who flickers fills the log."),
    M("introductions", 'node.count.refused["implausible-handshake"] += 1', "pass", "Hellos that are refused are not counted."),
    M("search", " or waited > rules.patience):", "):", "A node looks for the others for ever."),
    M("search", "self._donors.append(donors.pop(node.draw(len(donors))))", "self._donors.append(donors[node.draw(len(donors))])",
      "One donor is asked several times."),
    M("search", "while donors and len(self._donors) < DONORS:", "while donors:", "Any number of donors is asked for a model."),
    M("search", "self._goal = front + 1", "self._goal = front + 2", "A node that returns goes on a round too far."),
    M("search", "several_differ = len(differing) >= self._node.membership.witnesses(self._node.now)", "several_differ = bool(differing)",
      "One that differs ends a node."),
    M("search", "if waited > TAKEN:", "if True:", "A node that starts again soon is refused because of its own last life."),
    M("search", 'if node.phase != "adopting" or event.by != self._donor:', 'if node.phase != "adopting":',
      "A model of somebody who was not asked is taken."),
    M("state_transfer", "lately = last is not None and node.now - last < GIVE_AGAIN", "lately = False", "Models are given as often as asked for."),
    M("state_transfer", "if node.begun and not lately", "if not lately", "A node gives its model before it has begun."),
    M("state_transfer", " and abs(event.round - node.round) <= NEAR:", ":", "A wish for a model from a round far away is granted."),
    # -- greeting, pace, questions, offers, whereabouts -----------------------------------------------------------------
    M("greeting", "self._next[node_id] = now + min(LONGEST, FIRST * 2**tries)", "self._next[node_id] = now",
      "There is no pause between greetings that fail."),
    M("greeting", "self._next[node_id] = now + PATIENCE", "self._next[node_id] = now", "A greeting is repeated before its answer can come."),
    M("greeting", "FIRST * 2**tries", "FIRST", "The pauses between greetings do not grow."),
    M("greeting", "self._next[node_id] = now + FIRST", "self._next[node_id] = now", "Who comes and goes is greeted without a pause."),
    M("adaptive_timeout", "3 * median_low(self._waits)", "3 * max(self._waits)", "One slow message moves the pace."),
    M("adaptive_timeout", "3 * median_low(self._waits)", "3 * median(self._waits)", "One of two neighbours moves the pace."),
    M("adaptive_timeout", "self._limit = min(self.deadline, int(", "self._limit = max(0, int(", "The pace ignores the deadline."),
    M("adaptive_timeout", "if len(self._waits) < WARM_UP or not self._work:", "if not self._waits or not self._work:",
      "The first message is believed to be typical."),
    M("questions", "if last is not None and node.now - last < SEND_AGAIN:", "if False:", "A message is sent as often as it is asked for."),
    M("questions", "for of, sent in self.kept.items() if of >= before}", "for of, sent in self.kept.items()}",
      "Messages are kept for ever."),
    M("questions", "for node_id in sorted(set(node_ids) - self._asking):", "for node_id in sorted(set(node_ids)):",
      "Who is being asked is asked again."),
    M("questions", "if event.answer == NOTHING and event.round == self._node.round:", "if event.answer == NOTHING:",
      "An answer about an earlier round excuses a peer in this one."),
    M("offers", "self._offer(node_id, retries - 1)", "self._offer(node_id, retries)", "There is no end of retries."),
    M("offers", "self._tried.add(node_id)", "pass", "Who has enough is offered the message again."),
    M("offers", "if 0 <= event.round < self._node.rules.rounds:", "if True:", "An offer may name any round."),
    M("locate", "self._front_pause = min(LONGEST, 2 * self._front_pause)", "pass", "One liar makes a node ask for the front without end."),
    M("locate", "answer is not None and answer >= round for", "answer is not None for",
      "Others in earlier rounds are taken for company."),
    M("locate", "return all(membership", "return any(membership", "One answer is enough to know the front."),
]  # fmt: skip


def killers(mutant):
    """The commands that should notice a mutant, the quickest first."""
    first = FIRST.get(mutant.file if mutant else "", UNITS[0])
    units = [f"{name}.py" for name in sorted(UNITS, key=lambda name: name != first)]
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "--no-header", "-p", "no:cacheprovider"]
    yield [*pytest, "-k", "not stumble", *units]
    yield [sys.executable, str(TESTS / "mutants.py"), "--schedules"]
    yield [*pytest, "-k", "stumble", "test_rounds.py"]  # the slowest of them
    yield [*pytest, "-k", "not schedule and not broken and not flood", "test_commitment.py", "test_coins.py"]
    yield [*pytest, "test_asynchronous_protocol.py"]


def schedules():
    """Play schedules with fixed seeds until one breaks a law."""
    import simulated
    import staying

    for worlds, seeds in ((simulated, range(SCHEDULES)), (staying, range(LONG))):
        for seed in seeds:
            try:
                worlds.run(seed)
            except Exception as problem:
                sys.exit(f"{worlds.__name__} {seed}: {problem!r}")


class Copy:
    """A copy of the package, to be mutated."""

    def __init__(self, folder):
        self.package = Path(folder) / "epidemic"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        home = {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder) / "hypothesis")}
        self.env = os.environ | home | {"PYTHONDONTWRITEBYTECODE": "1", "EPIDEMIC_FREE_SCHEDULES": "40"}
        where = self.run([sys.executable, "-c", "import epidemic; print(epidemic.__file__)"]).stdout
        assert Path(where.strip()).is_relative_to(self.package), f"{where} is not the copy in {folder}"

    def run(self, command):
        def bounded():
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

        return subprocess.run(command, cwd=TESTS, env=self.env, capture_output=True, text=True, preexec_fn=bounded)

    def killed(self, mutant):
        """By what a mutant is killed, in a line; None: it survives."""
        if mutant is not None:
            original = (PACKAGE / mutant.path).read_text()
            (self.package / mutant.path).write_text(mutant.applied(original))
        try:
            for command in killers(mutant):
                done = self.run(command)
                if done.returncode:
                    return reason(done)
        finally:
            if mutant is not None:
                (self.package / mutant.path).write_text(original)
        return None


def reason(done):
    """The first line that says what was noticed."""
    lines = (done.stdout + "\n" + done.stderr).splitlines()
    told = [line for line in lines if line.startswith(("FAILED", "ERROR", "simulated ", "staying "))]
    if done.returncode < 0:
        told = [*told, f"it hangs, or ends by signal {-done.returncode}"]
    return (told or [line for line in lines if line.strip()] or ["no word"])[0][:150]


def main(words):
    """Try the mutants whose file or sentence has one of these words; the exit code."""
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.breaks}" for word in words)]
    for mutant in chosen:
        mutant.applied((PACKAGE / mutant.path).read_text())
    start, survivors, workers = time.monotonic(), [], os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="epidemic-mutants-") as folder:
        free = SimpleQueue()
        for i in range(workers):
            free.put(Copy(Path(folder) / str(i)))

        def attempt(mutant):
            copy = free.get()
            try:
                return mutant, copy.killed(mutant)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            found = [pool.submit(attempt, mutant) for mutant in [None, *chosen]]
            for done in as_completed(found):
                mutant, why = done.result()
                if mutant is None and why is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
                    print(f"the protocol as it is does not pass: {why}")
                    return 1
                if mutant is not None:
                    print(f"{'killed' if why else 'SURVIVED':9}{mutant.file:12}{mutant.breaks}  [{why}]", flush=True)
                    survivors += [mutant] * (why is None)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed, in {time.monotonic() - start:.0f} s")
    for mutant in survivors:
        print(f"survived: {mutant.file}.py: {mutant.breaks}  {mutant.old!r} -> {mutant.new!r}")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--schedules"]:
        schedules()
    else:
        sys.exit(main(sys.argv[1:]))
