"""Whatever the network, the clocks and a single member do, nodes without rounds keep their laws; and what one node does, event by event."""

import os

import pytest

import asynchronous_simulated
from epidemic.algorithms.asynchronous import AsynchronousMethod, Message, Node
from epidemic.protocol import events as e
from epidemic.protocol.asynchronous import ALLOWED, FASTEST, Asynchronous, AsynchronousRules, Memory
from epidemic.protocol.deployed_context import DeployedContext
from epidemic.protocol.replay_filter import MOST_A_SECOND, WINDOW, ReplayFilter

SECOND = e.SECOND
SCHEDULES = int(os.environ.get("EPIDEMIC_FREE_SCHEDULES", "40"))


@pytest.mark.parametrize("chunk", range(8))
def test_all_laws_hold_on_every_schedule(chunk):
    for seed in range(chunk, SCHEDULES, 8):
        try:
            asynchronous_simulated.run(seed)
        except Exception as problem:
            pytest.fail(f"{problem!r}; replay it: python tests/soak.py --free --seed {seed}")


# -- each law has teeth -----------------------------------------------------------------------------------------------


def caught(protocol, words, first=0):
    for seed in range(first, first + 200):
        try:
            asynchronous_simulated.run(seed, protocol)
        except AssertionError as problem:
            if words not in str(problem):
                raise
            return True
    return False


def test_a_message_that_counts_twice_is_caught():
    class Forgetful(ReplayFilter):
        def put(self, sender, number, now):
            self._senders.pop(sender, None)
            return super().put(sender, number, now)

    class Broken(Asynchronous):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._replay_filter.__class__ = Forgetful

    assert caught(Broken, "different ones came")


def test_a_node_that_does_not_stop_is_caught():
    class Endless(Asynchronous):
        def end(self):
            self.act(e.SetTimer("stop", self.now + 100_000))
            if self.now - self.origin > self.rules.stop + 300_000:
                super().end()

    assert caught(Endless, "after its stop")


def test_choices_that_are_made_again_after_a_restart_are_caught():
    class Again(Asynchronous):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.context.skip = lambda _: None
            self._make, make = lambda context: forgetful(make(context)), self._make

    def forgetful(node):
        node.state = dict
        return node

    assert caught(Again, "a choice of a former life", first=33)


# -- one node ---------------------------------------------------------------------------------------------------------


class Plain(Node):
    """Trains all the time, sends to whom it may choose, and takes what comes."""

    count = 0

    def started(self):
        self.context.train()
        self.context.wake_at(self.context.now + SECOND, "bell")

    def trained(self, row):
        self.context.model = row
        self.context.send(self.context.peers(self.count), row, note=(7,))
        self.count += 1
        self.context.train()

    def received(self, message):
        self.context.model = self.context.mix([(0.5, self.context.model), (0.5, message.row)])
        self.context.used([message])

    def woken(self, tag):
        self.context.send([1], None, tag=tag)


class One:
    """A protocol with two others that are there, and what it did."""

    def __init__(self, nodes=4, machine=Plain, memory=None, peers=(1, 2, 3), rounds=10, **rules):
        class Chances:
            static = False

            def __init__(self):
                self.asked = []

            def peers(self, count):
                self.asked.append(count)
                return peers

            def chance(self, purpose, count):
                return 0.25

        class Rows:
            def mix(self, terms):
                return ("mix", *terms)

        self.chances = Chances()
        self.now = 0
        made = AsynchronousRules(0, nodes, rounds, founders=frozenset({1, 2}), **{"stop": 10 * SECOND, **rules})
        self.p = Asynchronous(made, machine, self.chances, Rows(), "model", lambda below: 0, "own", memory=memory)

    def __call__(self, *events, after=0):
        acts = []
        self.now += after
        for event in events:
            acts += self.p.step(event, self.now)
        return acts

    def begin(self, round=-1):
        acts = self(e.Started()) if self.p.phase == "starting" else []
        for node_id in (1, 2):
            acts += self(
                e.Present(node_id, f"t{node_id}", True), e.Introduced(node_id, node_id, f"t{node_id}", round, 0)
            )
        return acts


def only(acts, *kinds):
    return [act for act in acts if isinstance(act, kinds)]


def message(sender, number, note=()):
    return e.Came(sender, number, note, Message(sender, f"row {number}", note=note))


def test_a_node_evaluates_trains_and_sends_to_those_of_its_choice_who_are_there():
    node = One()
    acts = node(e.Started())
    assert only(acts, e.Look) == [e.Look("model", Memory(), True)]  # while it looks for the others
    assert only(node.begin(), e.Look, e.Learn) == [e.Learn(0, "model")]
    acts = node(e.Looked(), e.Learnt(0, "better"), after=SECOND // 2)
    post = e.SendMessage(1, (1, 2), "better", "", (7,), None)  # nobody has seen node 3
    assert only(acts, e.SendMessage, e.Learn) == [post, e.Learn(1, "better")]
    assert node(e.Learnt(0, "the same again")) == []
    acts = node(e.Introduced(2, 2, "t2", 3, 0, (), True), e.Learnt(1, "best"))
    assert only(acts, e.SendMessage)[0].to == (1,)  # node 2 has finished


def test_a_message_is_used_once_and_what_it_changes_is_computed():
    node = One()
    node.begin()
    mixed = ("mix", (0.5, "model"), (0.5, "row 5"))
    assert node(message(1, 5), message(1, 5)) == [e.ComputeModel(mixed)]
    assert dict(node.p.tally) == {"counted": 1, "used": 1, "duplicate": 1}


def test_messages_before_the_beginning_and_after_the_end_are_counted_and_go_nowhere():
    node = One()
    node(e.Started(), message(1, 1))
    node.begin()
    acts = node(e.Timer("stop"), message(1, 2), after=10 * SECOND)
    assert only(acts, e.Withdraw, e.Conclude) == [e.Withdraw(), e.Conclude()]
    assert dict(node.p.tally) == {"early": 1, "late": 1}
    assert node(e.Learnt(0, "too late")) == []
    assert node.p.context.model == "model"


def test_ages_that_nobody_can_have_are_refused_and_said_once():
    node = One()
    node.begin()
    most = FASTEST * (ALLOWED + node.p.elapsed // SECOND)
    acts = node(message(1, 1, (most,)), message(1, 2, (most + 1,)), message(1, 3, (-1,)))
    assert node.p.tally["counted"] == 1
    assert node.p.count.refused["implausible"] == 2
    assert [act.text for act in only(acts, e.Say)] == [
        "refused a message of node 1: implausible ages (further ones are only counted)"
    ]


def test_timers_are_replaced_and_cancelled():
    node = One()
    acts = node.begin()
    assert [a.at for a in only(acts, e.SetTimer) if a.name == "wake bell"] == [node.now + SECOND]
    node.p.context.wake_at(node.p.context.now + 2 * SECOND, "bell")
    assert only(node(e.Timer("wake bell"), after=SECOND), e.SendMessage) == []  # the earlier one came
    assert only(node(e.Timer("wake bell"), after=SECOND), e.SendMessage) == [
        e.SendMessage(1, (1,), None, "bell", (), None)
    ]
    node.p.context.wake_at(node.p.context.now + SECOND, "bell")
    node.p.context.cancel("bell")
    assert only(node(e.Timer("wake bell"), after=2 * SECOND), e.SendMessage) == []


def test_a_node_that_returns_goes_on_with_its_own_model_where_the_others_are():
    memory = Memory(2 * SECOND, trained=8, number=900, choices={"peers": 30})
    node = One(memory=memory)
    acts = node.begin(round=6)  # two others say to be in second 6
    assert only(acts, e.Ask) == []
    assert node.p.elapsed == 6 * SECOND
    assert any("the others are in second 6: going on from there instead of 2" in act.text for act in only(acts, e.Say))
    assert only(acts, e.Learn) == [e.Learn(8, "model")]  # trainings go on, and so do choices and numbers of messages
    acts = node(e.Learnt(8, "better"))
    assert node.chances.asked[-1] == 30
    assert only(acts, e.SendMessage)[0].number == 901


def test_what_a_machine_remembers_itself_is_given_back_to_it_and_its_counts_are_its_own():
    class Aged(Plain):
        def state(self):
            return {"count": self.count}

        def restore(self, state):
            self.count = state["count"]

    first = One(machine=Aged)
    first.begin()
    first(e.Learnt(0, "a"), e.Learnt(1, "b"))
    memory = first.p.memory()
    assert memory.state == {"count": 2}
    assert memory.trained == 2
    second = One(machine=Aged, memory=memory)
    second.begin()
    second(e.Learnt(2, "c"))
    assert second.chances.asked[-1] == 2


def test_one_that_has_no_model_takes_somebodys():
    node = One(adopt=True)
    acts = node.begin(round=3)
    asked = only(acts, e.Ask)
    assert [(a.topic, a.to) for a in asked] == [("model", 1)]
    acts = node(e.Answered("model", 1, asked[0].round, ("given",)))
    assert acts == [e.Adopt(("given",))]
    assert only(node(e.Adopted()), e.Learn) == [e.Learn(0, "model")]  # whoever drives it has put the model there


def test_one_that_comes_after_the_end_has_learnt_nothing():
    acts = One(adopt=False).begin(round=10)
    assert [act.reason for act in only(acts, e.Fail)] == ["all peers finished before this node learnt anything"]


def test_evaluations_by_time_come_one_at_a_time():
    node = One(evaluate=2 * SECOND)
    acts = node.begin()
    start = node.p.origin
    assert [a.at - start for a in only(acts, e.SetTimer) if a.name == "evaluate"] == [2 * SECOND]
    acts = node(e.Timer("evaluate"), after=2 * SECOND)
    assert only(acts, e.Look) == []  # the first is still being looked at
    assert [a.at - start for a in only(acts, e.SetTimer)] == [4 * SECOND]
    acts = node(e.Looked(), e.Timer("evaluate"), after=2 * SECOND)
    assert len(only(acts, e.Look)) == 1
    assert only(acts, e.Look)[0].evaluate


def test_training_two_things_at_once_is_an_error_of_the_method():
    node = One()
    node.begin()
    with pytest.raises(RuntimeError, match="one thing at a time"):
        node.p.context.train()


def test_a_body_has_everything_that_a_node_may_ask_of_me():
    from epidemic.algorithms.asynchronous import NodeContext

    wanted = {name for name in dir(NodeContext) if not name.startswith("_")} | set(NodeContext.__annotations__)
    assert wanted <= set(dir(DeployedContext)) | set(vars(One().p.context))
    assert AsynchronousMethod().kinds[0].notes == 0


# -- which messages count ----------------------------------------------------------------------------------------------


def test_messages_may_overtake_each_other_a_little_and_each_counts_once():
    replay_filter, now = ReplayFilter(parts=100), 0
    numbers = [10, 12, 11, 12, 9, 10 + WINDOW, 11, 13, 10, 2**62, 14]
    found = [replay_filter.put(3, number, now) for number in numbers]
    new = ["counted", "counted", "counted", "duplicate", "counted", "counted"]
    assert found == [*new, "duplicate", "counted", "duplicate", "counted", "duplicate"]
    assert replay_filter.put(4, 1, now) == "counted"  # others are not touched


def test_who_sends_too_much_is_heard_at_its_pace_only():
    replay_filter = ReplayFilter()
    found = [replay_filter.put(1, i, 0) for i in range(2 * MOST_A_SECOND)]
    assert found.count("counted") == MOST_A_SECOND
    assert set(found[MOST_A_SECOND:]) == {"flood"}
    assert [replay_filter.put(1, 1000 + i, SECOND // 2) for i in range(MOST_A_SECOND)].count(
        "counted"
    ) == MOST_A_SECOND // 2
    assert replay_filter.put(2, 0, 0) == "counted"
