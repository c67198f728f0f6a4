//! The cluster around the operator: a StatefulSet's controller, kubelets, brains, users, and faults.

use crds::cluster::status::RolloutType;

use super::rules::Rule;
use super::{Limits, Scenario, Wish};

/// Number of a pod template, by the edit of the spec that it came from.
pub(super) type Template = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Health {
    /// Its brain does not answer yet.
    Starting,
    /// Its container ended, again and again.
    Dead,
    /// Its brain answers, may even lead, but does not serve.
    Unready,
    /// Ready, but not for `minReadySeconds` yet.
    Young,
    Ready,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pod {
    pub template: Template,
    pub health: Health,
    /// It is about to be evicted.
    pub evicted: bool,
}

impl Pod {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.health, Health::Young | Health::Ready)
    }

    /// Returns true if its brain answers.
    pub(super) fn runs(&self) -> bool {
        self.is_ready() || self.health == Health::Unready
    }

    pub(super) fn serves(&self) -> bool {
        self.is_ready() && !self.evicted
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Member {
    Absent,
    Leaving,
    Here(Pod),
}

impl Member {
    pub(super) fn pod(&self) -> Option<&Pod> {
        match self {
            Self::Here(pod) => Some(pod),
            Self::Absent | Self::Leaving => None,
        }
    }
}

/// A hand-over that the status remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub from: usize,
    pub to: usize,
    /// The leader has not changed since the request.
    pub same_epoch: bool,
    pub overdue: bool,
}

/// State that the operator keeps in the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Recorded {
    /// The kind of the change in progress, if any.
    pub change: Option<RolloutType>,
    pub asked: Option<Asked>,
    /// The request for another leader was handled.
    pub wish_handled: bool,
}

/// State that the operator can see.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub members: Vec<Member>,
    pub leader: Option<usize>,
    /// No brain can be reached.
    pub silent: bool,
    /// The template that the spec asks for, and that of the StatefulSet.
    pub wanted: Template,
    pub template: Template,
    /// The StatefulSet's controller has seen its newest template.
    pub adopted: bool,
    pub paused: bool,
    pub wish: Option<Wish>,
    pub recorded: Recorded,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub view: View,
    pub left: Limits,
    /// Number of hand-overs that succeeded.
    pub hand_overs: u8,
    /// The rule that the last step of the operator broke.
    pub broken: Option<Rule>,
}

/// Events around the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The StatefulSet's controller sees the newest template.
    Adopt,
    /// It makes a pod.
    Create(usize),
    /// A deleted pod has disappeared.
    Gone(usize),
    /// A brain starts, and serves if it can.
    Start(usize),
    /// A pod has been ready for `minReadySeconds`.
    Settle(usize),
    /// A pod that failed comes back.
    Recover(usize),
    /// A pod that is evicted is deleted.
    Remove(usize),
    /// This member leads from now on; no member led before, or the former leader is being deleted.
    Elect(usize),
    /// The time for a hand-over has passed.
    Overdue,
    /// Brains can be reached again.
    Reach,

    /// A member stops serving, but runs.
    Fail(usize),
    /// A member ends.
    Die(usize),
    Evict(usize),
    /// No brain can be reached.
    Silence,
    /// This member leads from now on, for no reason that the operator knows.
    Lead(usize),
    Pause,
    Resume,
    /// The spec asks for the next template.
    Edit,
}

impl Scenario {
    /// A cluster that serves and whose spec was just changed, once for each leader.
    pub(super) fn begin(&self) -> Vec<State> {
        let pod = Pod {
            template: 0,
            health: Health::Ready,
            evicted: false,
        };
        let view = View {
            members: vec![Member::Here(pod); self.members],
            leader: None,
            silent: false,
            wanted: 1,
            template: 0,
            adopted: true,
            paused: false,
            wish: self.wish,
            recorded: Recorded::default(),
        };
        let led_by = |leader| State {
            view: View {
                leader: Some(leader),
                ..view.clone()
            },
            left: self.limits,
            hand_overs: 0,
            broken: None,
        };
        (0..self.members).map(led_by).collect()
    }

    pub(super) fn never_runs(&self, template: Template) -> bool {
        self.broken && template == 1
    }

    /// Returns events that happen by themselves, without a fault or a user.
    pub(super) fn natural(&self, view: &View) -> Vec<Event> {
        let mut events = Vec::new();
        let leaderless = view.leader.is_none_or(|leader| view.members[leader] == Member::Leaving);
        for (member, state) in view.members.iter().enumerate() {
            let pod = match state {
                Member::Absent if view.adopted => {
                    events.push(Event::Create(member));
                    continue;
                }
                Member::Absent => continue,
                Member::Leaving => {
                    events.push(Event::Gone(member));
                    continue;
                }
                Member::Here(pod) => pod,
            };
            match pod.health {
                Health::Starting => events.push(Event::Start(member)),
                Health::Dead if self.never_runs(pod.template) => {}
                Health::Dead | Health::Unready => events.push(Event::Recover(member)),
                Health::Young => events.push(Event::Settle(member)),
                Health::Ready => {}
            }
            if pod.evicted {
                events.push(Event::Remove(member));
            }
            if leaderless && pod.runs() {
                events.push(Event::Elect(member));
            }
        }
        if !view.adopted {
            events.push(Event::Adopt);
        }
        if view
            .recorded
            .asked
            .is_some_and(|asked| asked.same_epoch && !asked.overdue)
        {
            events.push(Event::Overdue);
        }
        if view.silent {
            events.push(Event::Reach);
        }
        events
    }

    /// Returns events that users and faults may cause.
    pub(super) fn outside(&self, state: &State) -> Vec<Event> {
        let (view, left) = (&state.view, &state.left);
        let mut events = Vec::new();
        for (member, pod) in view.members.iter().enumerate() {
            let Some(pod) = pod.pod() else { continue };
            if left.faults > 0 {
                if pod.is_ready() {
                    events.push(Event::Fail(member));
                }
                if pod.runs() {
                    events.push(Event::Die(member));
                }
                if !pod.evicted {
                    events.push(Event::Evict(member));
                }
            }
            if left.leads > 0 && pod.runs() && view.leader.is_some_and(|leader| leader != member) {
                events.push(Event::Lead(member));
            }
        }
        if left.faults > 0 && !view.silent {
            events.push(Event::Silence);
        }
        if view.paused {
            events.push(Event::Resume);
        } else if left.pauses > 0 {
            events.push(Event::Pause);
        }
        if left.edits > 0 {
            events.push(Event::Edit);
        }
        events
    }

    pub(super) fn after(&self, state: &State, event: Event) -> State {
        let mut next = state.clone();
        let (view, left) = (&mut next.view, &mut next.left);
        match event {
            Event::Adopt => view.adopted = true,
            Event::Create(member) => {
                view.members[member] = Member::Here(Pod {
                    template: view.template,
                    health: Health::Starting,
                    evicted: false,
                });
            }
            Event::Gone(member) => {
                view.members[member] = Member::Absent;
                view.loses(member);
            }
            Event::Start(member) => {
                let pod = view.pod(member);
                pod.health = if self.never_runs(pod.template) {
                    Health::Dead
                } else {
                    Health::Young
                };
            }
            Event::Settle(member) => view.pod(member).health = Health::Ready,
            Event::Recover(member) => {
                let pod = view.pod(member);
                pod.health = if pod.health == Health::Dead {
                    Health::Starting
                } else {
                    Health::Young
                };
            }
            Event::Remove(member) => view.members[member] = Member::Leaving,
            Event::Elect(member) => view.lead(member),
            Event::Overdue => view.recorded.asked.iter_mut().for_each(|asked| asked.overdue = true),
            Event::Reach => view.silent = false,
            Event::Fail(member) => {
                left.faults -= 1;
                view.pod(member).health = Health::Unready;
            }
            Event::Die(member) => {
                left.faults -= 1;
                view.pod(member).health = Health::Dead;
                view.loses(member);
            }
            Event::Evict(member) => {
                left.faults -= 1;
                view.pod(member).evicted = true;
            }
            Event::Silence => {
                left.faults -= 1;
                view.silent = true;
            }
            Event::Lead(member) => {
                left.leads -= 1;
                view.lead(member);
            }
            Event::Pause => {
                left.pauses -= 1;
                view.paused = true;
            }
            Event::Resume => view.paused = false,
            Event::Edit => {
                left.edits -= 1;
                view.wanted += 1;
            }
        }
        next
    }
}

impl View {
    fn pod(&mut self, member: usize) -> &mut Pod {
        match &mut self.members[member] {
            Member::Here(pod) => pod,
            other => panic!("member {member} is {other:?}"),
        }
    }

    /// Another leader begins another epoch.
    pub(super) fn lead(&mut self, member: usize) {
        self.leader = Some(member);
        self.recorded
            .asked
            .iter_mut()
            .for_each(|asked| asked.same_epoch = false);
    }

    fn loses(&mut self, member: usize) {
        if self.leader == Some(member) {
            self.leader = None;
        }
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.members.iter().filter_map(Member::pod)
    }

    /// Returns true if everything matches the spec, and no steps are left.
    pub(super) fn is_rolled_out(&self) -> bool {
        let Recorded {
            change,
            asked,
            wish_handled,
        } = &self.recorded;
        self.leader.is_some()
            && self.members.iter().all(|member| {
                let wanted = Pod {
                    template: self.wanted,
                    health: Health::Ready,
                    evicted: false,
                };
                member.pod() == Some(&wanted)
            })
            && self.template == self.wanted
            && (change, asked, *wish_handled) == (&None, &None, self.wish.is_some())
    }
}
