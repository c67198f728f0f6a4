//! Properties: steps that the operator must never take, and the end that a roll-out must reach.

use stateright::{Model, Property};

use super::cluster::{Event, Health, Member, State, View};
use super::pass::{Done, Planned};
use super::{BROKEN, ENDS, HALF_PAUSED, OVERDUE, Scenario, WISH, Walk};

/// A rule that a step broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    Alone,
    Pause,
    Template,
    UpToDate,
    Budget,
    Leader,
    Successor,
    BrokenTemplate,
    HandOvers,
    Words,
}

/// Answer of the leader to the request to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    HandsOver,
    /// It hands over, but the operator does not receive the answer.
    Lost,
    Refuses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A pass; unless it is `recorded`, the operator is killed before it writes the status.
    Pass {
        answer: Answer,
        recorded: bool,
    },
    Around(Event),
}

impl Model for Walk {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.scenario.begin()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // States after an invalid one are of no interest.
        if state.broken.is_some() {
            return;
        }
        let planned = self.operator.plan(&state.view);
        let answers: &[Answer] = if planned.asks() {
            &[Answer::HandsOver, Answer::Lost, Answer::Refuses]
        } else {
            &[Answer::Refuses]
        };
        for &answer in answers {
            actions.push(Action::Pass { answer, recorded: true });
            if state.left.kills > 0 && !planned.steps.is_empty() {
                actions.push(Action::Pass {
                    answer,
                    recorded: false,
                });
            }
        }
        let around = self.scenario.natural(&state.view).into_iter();
        actions.extend(around.chain(self.scenario.outside(state)).map(Action::Around));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = match action {
            Action::Pass { answer, recorded } => self.pass(state, answer, recorded),
            Action::Around(event) => self.scenario.after(state, event),
        };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        use Rule::*;
        fn kept(rule: Rule, state: &State) -> bool {
            state.broken != Some(rule)
        }
        vec![
            Property::always("a disruptive step stands alone", |_, state| kept(Alone, state)),
            Property::always("a pause holds every change back", |_, state| kept(Pause, state)),
            Property::always(
                "nobody is replaced before the newest template is adopted",
                |_, state| kept(Template, state),
            ),
            Property::always("a member that is up to date is not replaced", |_, state| {
                kept(UpToDate, state)
            }),
            Property::always("as many members serve as the budget wants", |_, state| {
                kept(Budget, state)
            }),
            Property::always(
                "a leader is asked before it is replaced, and is the last",
                |_, state| kept(Leader, state),
            ),
            Property::always("a leader hands over to the best that can lead", |_, state| {
                kept(Successor, state)
            }),
            Property::always("a broken template stops after one member", |_, state| {
                kept(BrokenTemplate, state)
            }),
            Property::always("leaders hand over a few times only", |_, state| kept(HandOvers, state)),
            Property::always("the status says what holds a replacement back", |_, state| {
                kept(Words, state)
            }),
            Property::always("what rests is rolled out", |walk: &Self, state: &State| {
                state.broken.is_some() || walk.may_rest(state) || !walk.rests(state)
            }),
            Property::sometimes(ENDS, |_, state: &State| {
                state.view.wanted == 1 + usize::from(state.left.edits == 0 && state.view.wanted > 1)
                    && state.view.is_rolled_out()
            }),
            Property::sometimes(OVERDUE, |_, state: &State| {
                let asked = state.view.recorded.asked;
                asked.is_some_and(|asked| asked.overdue && asked.same_epoch)
            }),
            Property::sometimes(HALF_PAUSED, |_, state: &State| {
                let is = |template| state.view.pods().any(|pod| pod.template == template);
                state.view.paused && is(0) && is(1)
            }),
            Property::sometimes(BROKEN, |walk: &Self, state: &State| {
                let broken = walk.scenario.never_runs(state.view.wanted);
                broken && state.broken.is_none() && walk.rests(state)
            }),
            Property::sometimes(WISH, |_, state: &State| state.view.recorded.wish_handled),
        ]
    }
}

impl Walk {
    /// Returns true if nothing more happens without a fault or a user, even if the leader refuses to hand over.
    fn rests(&self, state: &State) -> bool {
        self.scenario.natural(&state.view).is_empty() && self.pass(state, Answer::Refuses, true) == *state
    }

    /// Returns true if all is done, or if only a user or the leader can do the rest.
    fn may_rest(&self, state: &State) -> bool {
        let view = &state.view;
        let outdated = view.pods().any(|pod| pod.template != view.template);
        let is_refused = !outdated && self.operator.plan(view).asks();
        view.is_rolled_out() || view.paused || is_refused || self.scenario.never_runs(view.template)
    }

    fn pass(&self, state: &State, answer: Answer, recorded: bool) -> State {
        let planned = self.operator.plan(&state.view);
        let mut next = state.clone();
        next.broken = broken_by(&self.scenario, &state.view, &planned);
        // The recorded hand-over reflects a change of leader only afterwards.
        if recorded {
            next.view.recorded = planned.record(answer == Answer::HandsOver);
        } else {
            next.left.kills -= 1;
        }
        for step in &planned.steps {
            match *step {
                Done::Write => (next.view.template, next.view.adopted) = (next.view.wanted, false),
                Done::Replace(member) => next.view.members[member] = Member::Leaving,
                Done::HandOver { .. } if answer == Answer::Refuses => {}
                Done::HandOver { to, .. } => {
                    next.view.lead(to);
                    next.hand_overs += 1;
                }
            }
        }
        if next.hand_overs > self.scenario.most_hand_overs() {
            next.broken = next.broken.or(Some(Rule::HandOvers));
        }
        next
    }
}

/// The first rule that a pass breaks.
fn broken_by(scenario: &Scenario, view: &View, planned: &Planned) -> Option<Rule> {
    let disruptive = planned.steps.iter().filter(|step| **step != Done::Write).count();
    if disruptive > 1 || (disruptive == 1 && planned.steps.len() > 1) {
        return Some(Rule::Alone);
    }
    if view.paused && !planned.steps.is_empty() {
        return Some(Rule::Pause);
    }
    match planned.steps.first() {
        Some(Done::Replace(member)) if planned.labels.contains(member) => Some(Rule::Alone),
        Some(Done::Replace(member)) => broken_by_replacing(scenario, view, *member),
        Some(Done::HandOver { from, to }) => broken_by_hand_over(view, *from, *to),
        Some(Done::Write) => None,
        None => {
            let outdated = view.pods().any(|pod| pod.template != view.template);
            let changes = view.wanted != view.template || !view.adopted;
            (outdated && !changes && !planned.waits && !view.paused).then_some(Rule::Words)
        }
    }
}

fn broken_by_replacing(scenario: &Scenario, view: &View, member: usize) -> Option<Rule> {
    let Some(pod) = view.members[member].pod() else {
        return Some(Rule::UpToDate);
    };
    let others = || {
        let others = view.members.iter().enumerate();
        others.filter_map(|(other, state)| (other != member).then_some(state))
    };
    let other_pods = || others().filter_map(Member::pod);
    let count_serving = other_pods().filter(|pod| pod.serves()).count();
    if view.template != view.wanted || !view.adopted {
        return Some(Rule::Template);
    }
    if pod.template == view.template {
        return Some(Rule::UpToDate);
    }
    // The budget counts members that serve; members that are being removed anyway count as unavailable.
    let going = |member: &&Member| match member {
        Member::Leaving => true,
        Member::Here(pod) => pod.evicted,
        Member::Absent => false,
    };
    let unsettled = |member: &&Member| match member {
        Member::Here(pod) => pod.template == view.template && pod.health != Health::Ready,
        Member::Absent | Member::Leaving => false,
    };
    let away = others()
        .filter(|member| going(member) || (pod.serves() && unsettled(member)))
        .count();
    let too_few = pod.serves() && count_serving + scenario.max_unavailable < scenario.members;
    if away >= scenario.max_unavailable || too_few {
        return Some(Rule::Budget);
    }
    let leads = view.leader == Some(member);
    let asked = view.recorded.asked;
    let asked = asked.is_some_and(|asked| asked.from == member && asked.same_epoch && asked.overdue);
    let outdated = other_pods().any(|pod| pod.template != view.template && pod.is_ready());
    if leads && count_serving > 0 && (!asked || (pod.is_ready() && outdated)) {
        return Some(Rule::Leader);
    }
    if view.silent && pod.runs() && other_pods().any(|pod| pod.is_ready()) {
        return Some(Rule::Leader);
    }
    // A pod that may recover by itself is kept: it would not recover as a member of the broken template. A template that has not failed yet
    // may be tried if no member serves, or if the leader is not ready and has not handed over in time: the new member may wait for it.
    let failed = other_pods().any(|pod| pod.template == view.template && pod.health == Health::Dead);
    let may_try = !view.pods().any(|pod| pod.is_ready()) || (leads && asked && !pod.is_ready());
    if scenario.never_runs(view.template) && pod.health != Health::Dead && (failed || !may_try) {
        let lost = |member: &&Member| match member {
            Member::Here(pod) => pod.template == view.template,
            Member::Absent | Member::Leaving => true,
        };
        if others().filter(lost).count() >= scenario.max_unavailable {
            return Some(Rule::BrokenTemplate);
        }
    }
    None
}

fn broken_by_hand_over(view: &View, from: usize, to: usize) -> Option<Rule> {
    let able = |pod: &&super::cluster::Pod| pod.serves();
    let Some(heir) = view.members[to].pod().filter(able) else {
        return Some(Rule::Successor);
    };
    let others = view.members.iter().enumerate().filter(|(member, _)| *member != from);
    let mut others = others.filter_map(|(_, member)| member.pod().filter(able));
    let better = heir.template != view.template && others.any(|pod| pod.template == view.template);
    (view.leader != Some(from) || from == to || better).then_some(Rule::Successor)
}
