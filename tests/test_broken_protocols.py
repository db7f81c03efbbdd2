"""Each law of the simulated schedules has teeth: protocols that are broken on purpose are caught within a few hundred schedules."""

from dataclasses import replace

import simulated
from epidemic.protocol import introductions, member
from epidemic.protocol.adaptive_timeout import AdaptiveTimeout
from epidemic.protocol.mailbox import Mailbox
from epidemic.protocol.membership import Membership
from epidemic.protocol.questions import Questions
from epidemic.protocol.rounds import Rounds
from simulated import with_part

SEEDS = 600


def caught(protocol=Rounds, words=""):
    """Whether a schedule catches a protocol, for this reason."""
    for seed in range(SEEDS):
        try:
            simulated.run(seed, protocol)
        except AssertionError as problem:
            if words not in str(problem):
                raise
            return True
    return False


def test_a_message_that_counts_twice_is_caught():
    class Twice(Mailbox):
        def _sort(self, round, sender, message):
            if round == self.round and not self._taken:
                self._messages.pop(sender, None)
            return super()._sort(round, sender, message)

    assert caught(with_part(mailbox=Twice), "were counted or late")


def test_a_message_that_counts_in_another_round_is_caught():
    class Confused(Mailbox):
        def _sort(self, round, sender, message):
            return super()._sort(max(round, self.round), sender, message)

    assert caught(with_part(mailbox=Confused), "in another round")


def test_a_mailbox_that_expects_nobody_is_caught():
    class Open(Mailbox):
        def open(self, round, expected):
            super().open(round, None)

    assert caught(with_part(mailbox=Open), "not what the simulator would mix")


def test_a_message_that_nobody_tallies_is_caught():
    class Forgetful(Mailbox):
        def put(self, round, sender, message):
            outcome = super().put(round, sender, message)
            self.tally[outcome] -= outcome == "duplicate"
            return outcome

    assert caught(with_part(mailbox=Forgetful), "are in the books")


def test_an_early_message_that_stays_in_two_tallies_is_caught():
    class Hoarding(Mailbox):
        def open(self, round, expected):
            early = self.tally["early"]
            super().open(round, expected)
            self.tally["early"] = early

    assert caught(with_part(mailbox=Hoarding), "are in the books")


def test_a_cap_that_is_promised_away_is_caught():
    class Generous(Mailbox):
        def promise(self, round, sender):
            self._cap = 99
            return super().promise(round, sender)

    assert caught(with_part(mailbox=Generous), "more than the cap")


def test_a_barrier_that_closes_when_time_is_up_is_caught():
    class Impatient(Rounds):
        def _wait(self):
            if self.rules.barrier and self.now - self.began >= self.rules.deadline:
                self._close(frozenset())
            else:
                super()._wait()

    assert caught(Impatient, "not what the simulator would mix")


def test_asking_at_once_is_caught():
    class Hasty(AdaptiveTimeout):
        suspicious = 0

    assert caught(with_part(adaptive_timeout=Hasty), "a control message although nothing was late")


def test_never_asking_again_is_caught():
    class Silent(Questions):
        def ask_again(self, node_ids):
            pass

    assert caught(with_part(questions=Silent), "hangs in waiting")


def test_a_barrier_that_waits_for_the_dead_for_ever_is_caught():
    class Faithful(Rounds):
        def _away_too_long(self, missing):
            return False

    assert caught(Faithful, "hangs in waiting")


def test_waiting_without_a_timer_is_caught():
    class Sleepy(Rounds):
        def wake(self, name, at):
            if name != "wait":
                super().wake(name, at)

    assert caught(Sleepy, "hangs in waiting")


def test_believing_one_alone_is_caught():
    class Credulous(Membership):
        def front(self, now, ahead=0):
            return self.furthest(now)

    assert caught(with_part(membership=Credulous), "but the others are in")


def test_counting_node_ids_of_one_process_as_witnesses_is_caught():
    class Counting(Membership):
        def carriers(self, now):
            return {node_id: self._peers[node_id].round for node_id in self.alive(now)}

    assert caught(
        with_part(membership=Counting), "the others"
    )  # a node goes where they are not, or comes when they have left


def test_believing_what_others_say_of_a_process_is_caught():
    class Trusting(Membership):
        def carriers(self, now):
            found = {}
            for node_id in self.alive(now):
                peer = self._peers[node_id]
                if peer.carrier in self._peers:
                    found[peer.carrier] = max(peer.round, found.get(peer.carrier, -1))
            return found

    assert caught(with_part(membership=Trusting), "the others")


def test_a_message_with_a_wrong_graph_that_counts_is_caught():
    class Careless(Rounds):
        def _arrived(self, event):
            near = 0 <= event.round < self.rules.rounds
            super()._arrived(replace(event, graph=self.view(event.round).graph) if near else event)

    assert caught(Careless, "a wrong graph")


def test_leaving_out_a_round_too_many_is_caught():
    class Leaping(Rounds):
        def go_to(self, round, how):
            super().go_to(round + 1, how)

    assert caught(Leaping, "but the others are in")


def test_late_messages_that_move_the_pace_again_and_again_are_caught():
    class Again(Mailbox):
        def _first(self, round, sender):
            super()._first(round, sender)
            return True

    assert caught(with_part(mailbox=Again), "were counted or late")


def test_saying_only_once_that_one_has_finished_is_caught(monkeypatch):
    monkeypatch.setattr(member, "TELL_END", 10**15)
    assert caught(words="hangs in lingering")


def test_greeting_a_stranger_as_fast_as_it_answers_is_caught(monkeypatch):
    class Eager(introductions.Greeting):
        def failed(self, node_id, now):
            self._next[node_id] = 0

        known = failed

    monkeypatch.setattr(introductions, "Greeting", Eager)
    assert caught(words="was greeted")


def test_a_memory_that_grows_is_caught():
    class Hoarding(Mailbox):
        def put(self, round, sender, message):
            self._seen.setdefault(-1, set()).update((round, sender, i) for i in range(40))
            return super().put(round, sender, message)

    assert caught(with_part(mailbox=Hoarding), "things")
