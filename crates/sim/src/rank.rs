//! One rank of a world: its program, and the threads that make and run its calls, as a front end has them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::named::{Borrowed, Progress};
use engine::{
    Call, Execution, Ground, Lane, Life, Limits, Loan, NamedLane, OwnedBuffers, Poll, Preparer, SharedWindows,
};
use engine::{Completion, Cut, Task, Terms, UnnamedLane, View};
use types::transport::{Channel, Clock, Counter, Geometry, Peers};
use types::{Buffers, Cause, Error, GroupName, Rank, Result};

use crate::memory::Memory;
use crate::random::Random;
use crate::scenario::{Circle, Making, Mode, Op};

/// What a world needs of its windows: those of the simulation, or something around them.
pub trait Sight: SharedWindows + Peers + Clock {}

impl<T: SharedWindows + Peers + Clock> Sight for T {}

/// The buffers of one launch.
#[derive(Debug)]
pub(crate) struct Held {
    input: Vec<u8>,
    output: Vec<u8>,
    in_place: bool,
}

impl Held {
    fn new(making: &Making, launch: usize, member: usize, input: Vec<u8>) -> Held {
        let (spec, size) = (&making.spec, making.spec.dtype.size());
        let mut output = vec![0xaa; spec.launches[launch] * size];
        if making.in_place {
            let start = spec.own_start(member) * size;
            output[start..start + input.len()].copy_from_slice(&input);
        }
        Held { input, output, in_place: making.in_place }
    }

    /// What its input and output hold, for the judge.
    pub(crate) fn content(&self) -> (Option<&[u8]>, &[u8]) {
        (Some(&self.input[..]).filter(|_| !self.in_place), &self.output)
    }
}

impl OwnedBuffers for Held {
    fn buffers(&mut self) -> Buffers<'_> {
        if self.in_place {
            return Buffers::InPlace(&mut self.output);
        }
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

/// A launch that has ended: which, how, and its buffers.
pub(crate) struct Ended {
    pub(crate) id: usize,
    pub(crate) launch: usize,
    pub(crate) result: Result<()>,
    pub(crate) held: Held,
}

/// Where completions put what has ended.
type Ends = Arc<Mutex<Vec<Ended>>>;

/// A rank in one group.
pub(crate) struct Member<W> {
    /// The rank's index in the group.
    pub(crate) index: usize,
    pub(crate) memory: Rc<Memory>,
    windows: W,
    pub(crate) life: Life,
    pub(crate) view: View,
    pub(crate) unnamed: UnnamedLane,
    named: NamedLane,
    /// Plans for submissions, made by terms of its own until the group's are known.
    submissions: Preparer,
    terms: Arc<Terms>,
    /// Submitted calls that helpers lead.
    loans: Vec<Loan>,
    /// Submitted calls that have not ended, unnamed and named.
    queued: [usize; 2],
    /// Calls that threads wait for.
    waiting: usize,
    pub(crate) closed: bool,
}

impl<W: Sight> Member<W> {
    pub(crate) fn new(rank: usize, number: usize, circle: &Circle, memory: &Rc<Memory>, windows: W) -> Member<W> {
        let index = circle.members.iter().position(|member| *member == rank).expect("made for members");
        let geometry = Geometry::of(circle.members.len());
        let own = Arc::new(Terms { geometry, choice: engine::Choice::default(), lanes: 1 });
        let Circle { geometry, lanes, ref choice, .. } = *circle;
        let preparer = || Preparer::new(Arc::clone(&own), index, circle.epochs[index], 0);
        let name = if number == 0 { GroupName::world() } else { named(number) };
        Member {
            index,
            memory: Rc::clone(memory),
            windows,
            life: Life::default(),
            view: View {
                rank: Rank::from_index(rank),
                ranks: circle.members.iter().copied().map(Rank::from_index).collect(),
                group: name,
            },
            unnamed: UnnamedLane::new(preparer()),
            named: NamedLane::new(preparer()),
            submissions: preparer(),
            terms: Arc::new(Terms { geometry, choice: choice.clone(), lanes }),
            loans: Vec::new(),
            queued: [0; 2],
            waiting: 0,
            closed: false,
        }
    }

    /// Whether the progress thread has something to do.
    pub(crate) const fn needs_progress(&self) -> bool {
        self.queued[0] + self.queued[1] > 0
    }

    /// Whether calls on it have not ended.
    pub(crate) const fn is_busy(&self) -> bool {
        self.needs_progress() || self.waiting > 0
    }

    fn is_alone(&self) -> bool {
        self.view.ranks.len() == 1
    }

    fn error(&self, op: &'static str) -> Error {
        self.life.error(self.view.site(op, None), Duration::ZERO, false)
    }

    /// How a call that is made now would be refused.
    pub(crate) fn next_call(&self) -> Option<Error> {
        (!self.is_live()).then(|| self.error("allreduce"))
    }

    /// Ends the epoch; if another rank was first, its cause stays.
    pub(crate) fn end(&self, cause: &Cause) {
        self.windows.abort(cause);
        self.life.end(&self.windows.aborted().unwrap_or_else(|| cause.clone()));
    }

    /// Closes this rank's part. Calls that have not ended end with it.
    pub(crate) fn close(&mut self, ends: &Ends) -> Vec<Ended> {
        self.life.close();
        self.closed = true;
        let calls = self.unnamed.state.calls();
        for channel in [Channel::Unnamed, Channel::Named] {
            self.windows.publish(channel, Counter::Left, calls + 1);
        }
        let now = self.windows.now();
        let mut progress = Progress::default();
        self.named.drain(&self.life, &self.view, now, None, &mut progress);
        progress.finished.extend(self.unnamed.drain(&self.life, &self.view, now));
        self.finish(progress.finished, ends)
    }

    fn finish(&mut self, finished: Vec<(Task, Result<()>)>, ends: &Ends) -> Vec<Ended> {
        for (task, result) in finished {
            self.queued[usize::from(task.call.is_named())] -= 1;
            task.finish(result);
        }
        take(ends)
    }

    /// One round of the progress thread, and turns of helpers.
    pub(crate) fn progress(&mut self, look: bool, random: &mut Random, ends: &Ends) -> Vec<Ended> {
        let Member { windows, life, view, unnamed, named, terms, queued, loans, .. } = self;
        let ground = Ground { windows: &*windows, peers: &*windows, life, view, clock: &*windows };
        named.agree(terms);
        let mut finished = named.poll(ground, None, look).finished;
        if queued[0] > 0 {
            unnamed.agree(terms);
            finished.extend(unnamed.poll(ground, look));
        }
        // Some time after a call was begun that can be lent, a helper comes.
        if random.chance(1, 4) {
            loans.extend(named.lend(None));
            loans.extend(unnamed.lend());
        }
        for mut loan in core::mem::take(loans) {
            let (mut call, site) = (loan.call(), loan.site_of(view));
            match poll_lanes(ground, loan.submitted_lanes(), look, random) {
                Poll::Pending if life.is_live() || !look => loans.push(loan),
                polled => {
                    let over = || life.error(site, call.elapsed(windows.now()), true);
                    let result = if let Poll::Ready(result) = polled { result } else { Err(over()) };
                    finished.extend(match call.is_named() {
                        true => named.settle(loan, result, false).finished,
                        false => unnamed.settle(loan, result),
                    });
                }
            }
        }
        self.finish(finished, ends)
    }

    fn limits(limit: Option<Duration>) -> Limits {
        Limits { deadline: limit, first_warning: Duration::from_secs(1 << 40) }
    }

    /// Submits a call whose launches have these buffers.
    fn submit(&mut self, making: &Making, id: usize, buffers: Vec<Held>, joined: bool, ends: &Ends) {
        if joined {
            self.submissions.with_terms(&self.terms);
        }
        let preparer = self.submissions.with_settings(making.spec.settings);
        let (now, mut next) = (self.windows.now(), None);
        for (launch, held) in buffers.into_iter().enumerate().rev() {
            let call = preparer.call(&making.spec.work(launch, &self.view.ranks), Self::limits(making.limit));
            let call = call.started(now);
            let call = making.name.as_ref().map_or(call.clone(), |name| call.named(name));
            let done = done(id, launch, ends);
            let buffers: Box<dyn OwnedBuffers> = Box::new(Tagged { held: Some(held), slot: Arc::clone(&done.1) });
            next = Some(Box::new(Task { call, buffers, done: done.0, next }));
            self.queued[usize::from(making.name.is_some())] += 1;
        }
        let first = *next.expect("a call has a launch");
        match making.name {
            Some(_) => self.named.submit(first),
            None => self.unnamed.submit(first),
        }
    }
}

/// Lets lanes go on as if each had a thread of its own: one that is drawn; a look is at all of them.
fn poll_lanes<W: Sight>(
    ground: Ground<'_, W, W>,
    mut lanes: Vec<Lane<'_>>,
    look: bool,
    random: &mut Random,
) -> Poll<Result<()>> {
    let drawn = random.below(lanes.len());
    let mut failed = None;
    for (_, lane) in lanes.iter_mut().enumerate().filter(|(at, _)| look || *at == drawn) {
        if let Poll::Ready(Err(error)) = lane.poll(ground, look) {
            failed.get_or_insert(error);
        }
    }
    match failed {
        Some(error) => Poll::Ready(Err(error)),
        None if lanes.iter().all(Lane::has_ended) => Poll::Ready(Ok(())),
        None => Poll::Pending,
    }
}

/// Buffers that are still there for the judge when the engine has given them back.
struct Tagged {
    held: Option<Held>,
    slot: Arc<Mutex<Option<Held>>>,
}

impl OwnedBuffers for Tagged {
    fn buffers(&mut self) -> Buffers<'_> {
        self.held.as_mut().expect("the buffers are there until the call is dropped").buffers()
    }
}

impl Drop for Tagged {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.held.take();
    }
}

/// What a submitted launch runs at its end.
fn done(id: usize, launch: usize, ends: &Ends) -> (Completion, Arc<Mutex<Option<Held>>>) {
    let (ends, slot) = (Arc::clone(ends), Arc::<Mutex<Option<Held>>>::default());
    let back = Arc::clone(&slot);
    let done = move |result, buffers: Box<dyn OwnedBuffers>| {
        drop(buffers);
        let held = back.lock().unwrap_or_else(PoisonError::into_inner).take().expect("dropped just now");
        ends.lock().unwrap_or_else(PoisonError::into_inner).push(Ended { id, launch, result, held });
    };
    (Box::new(done), slot)
}

fn take(ends: &Ends) -> Vec<Ended> {
    core::mem::take(&mut *ends.lock().unwrap_or_else(PoisonError::into_inner))
}

fn named(number: usize) -> GroupName {
    GroupName::new(&format!("g{number}")).expect("a short name")
}

/// A call that a thread waits for.
pub(crate) struct Waiting {
    making: Making,
    pub(crate) id: usize,
    launch: usize,
    call: Call,
    how: How,
    buffers: VecDeque<Held>,
}

enum How {
    Whole(Execution),
    Cut(Cut),
    Named(u128),
    /// A named call that is cut, and that its thread has taken out of the lane.
    Lent(u128, Box<Loan>),
}

/// One rank of a world.
pub(crate) struct Process<W> {
    pub(crate) rank: usize,
    /// By the number of the group.
    pub(crate) members: Vec<Option<Member<W>>>,
    pub(crate) program: Vec<Op>,
    /// The step that is next, or under way.
    pub(crate) at: usize,
    /// The call that the program waits for.
    pub(crate) main: Option<Waiting>,
    /// Those that threads of their own wait for.
    pub(crate) threads: Vec<Waiting>,
    /// Whether the user wants out of the program's next wait.
    pub(crate) interrupted: bool,
    pub(crate) has_left: bool,
    pub(crate) ends: Ends,
}

/// How the program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// It has done something.
    On,
    /// It waits.
    Waits,
}

impl<W: Sight> Process<W> {
    pub(crate) fn new(rank: usize, members: Vec<Option<Member<W>>>, program: Vec<Op>) -> Process<W> {
        Process {
            rank,
            members,
            program,
            at: 0,
            main: None,
            threads: Vec::new(),
            interrupted: false,
            has_left: false,
            ends: Ends::default(),
        }
    }

    pub(crate) fn member(&mut self, group: usize) -> &mut Member<W> {
        self.members[group].as_mut().expect("programs name groups of their rank")
    }

    /// Whether anything of it has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.main.is_some() || self.members.iter().flatten().any(Member::is_busy)
    }

    /// Whether an unnamed call must wait for those that were submitted before.
    pub(crate) fn waits_for_turn(&self, making: &Making) -> bool {
        let member = self.members[making.group].as_ref();
        making.name.is_none() && making.mode == Mode::Blocking && member.is_some_and(|member| member.queued[0] > 0)
    }

    /// Why a call cannot be made.
    pub(crate) fn refusal(&self, making: &Making) -> Option<Error> {
        let member = self.members[making.group].as_ref()?;
        // A submission looks at this process's own state only.
        let live = if making.mode == Mode::Submitted { member.life.is_live() } else { member.is_live() };
        (!live).then(|| member.error(making.spec.kind.name()))
    }

    /// Makes a call that is not refused. Of a group of one it ends at once.
    pub(crate) fn make(&mut self, making: &Making, id: usize, inputs: Vec<Vec<u8>>, random: &mut Random) -> Vec<Ended> {
        let ends = Arc::clone(&self.ends);
        let member = self.member(making.group);
        let held = |(launch, input)| Held::new(making, launch, member.index, input);
        let mut buffers: VecDeque<Held> = inputs.into_iter().enumerate().map(held).collect();
        if member.is_alone() {
            let alone = |(launch, mut held): (usize, Held)| {
                making.spec.work(launch, &member.view.ranks).alone(&mut held.buffers());
                Ended { id, launch, result: Ok(()), held }
            };
            return buffers.into_iter().enumerate().map(alone).collect();
        }
        if making.mode == Mode::Submitted {
            member.submit(making, id, buffers.drain(..).collect(), random.chance(1, 2), &ends);
            return Vec::new();
        }
        member.waiting += 1;
        let waiting = member.wait(making, id, buffers, random.chance(1, 2));
        match making.mode {
            Mode::Thread => self.threads.push(waiting),
            _ => self.main = Some(waiting),
        }
        Vec::new()
    }

    /// Lets a thread that waits for a call go on; `None`: the program's own.
    pub(crate) fn go_on(&mut self, thread: Option<usize>, look: bool, random: &mut Random) -> Vec<Ended> {
        let taken = match thread {
            Some(at) => Some(self.threads.swap_remove(at)),
            None => self.main.take(),
        };
        let Some(mut waiting) = taken else { return Vec::new() };
        let interrupted = thread.is_none() && look && core::mem::take(&mut self.interrupted);
        let ends = Arc::clone(&self.ends);
        let rank = Rank::from_index(self.rank);
        let member = self.member(waiting.making.group);
        if interrupted && member.life.is_live() {
            member.end(&Cause::Interrupted { by: rank });
        }
        let (mut ended, over) = member.go_on(&mut waiting, look, random, &ends);
        if over {
            member.waiting -= 1;
            // What was not begun fails with the rest.
            let last = ended.last().map(|ended| ended.result.clone());
            for (held, launch) in waiting.buffers.drain(..).zip(waiting.launch + 1..) {
                let result = last.clone().expect("a call is over when a launch has ended");
                ended.push(Ended { id: waiting.id, launch, result, held });
            }
        } else {
            match thread {
                Some(_) => self.threads.push(waiting),
                None => self.main = Some(waiting),
            }
        }
        ended
    }
}

impl<W: Sight> Member<W> {
    /// Begins a call that a thread waits for.
    fn wait(&mut self, making: &Making, id: usize, buffers: VecDeque<Held>, dated: bool) -> Waiting {
        let work = making.spec.work(0, &self.view.ranks);
        let goes_on = buffers.len() > 1;
        let limits = Self::limits(making.limit);
        let begun = (dated || goes_on).then(|| self.windows.now());
        let (call, how) = match &making.name {
            Some(name) => {
                let preparer = self.named.preparer.with_settings(making.spec.settings);
                let call = preparer.call(&work, limits).begun(begun).named(name);
                let identity = self.named.enter(&call, goes_on);
                (call, How::Named(identity))
            }
            None => self.begin(making, 0, begun),
        };
        Waiting { making: making.clone(), id, launch: 0, call, how, buffers }
    }

    /// Begins an unnamed launch on the calling thread.
    fn begin(&mut self, making: &Making, launch: usize, begun: Option<Duration>) -> (Call, How) {
        let work = making.spec.work(launch, &self.view.ranks);
        self.unnamed.agree(&self.terms);
        let UnnamedLane { state, preparer, .. } = &mut self.unnamed;
        let call = preparer.with_settings(making.spec.settings).call(&work, Self::limits(making.limit)).begun(begun);
        let how = match call.is_cut() {
            true => How::Cut(Cut::begin(state, &call)),
            false => How::Whole(Execution::begin(state)),
        };
        (call, how)
    }

    /// Lets a call that a thread waits for go on: the launches that have ended, and whether the call is over.
    fn go_on(&mut self, waiting: &mut Waiting, look: bool, random: &mut Random, ends: &Ends) -> (Vec<Ended>, bool) {
        let goes_on = waiting.buffers.len() > 1;
        let mut held = waiting.buffers.pop_front().expect("a launch that has not ended has buffers");
        let (polled, mut ended) = self.poll(waiting, &mut held, goes_on, look, random, ends);
        let Poll::Ready(result) = polled else {
            waiting.buffers.push_front(held);
            return (ended, false);
        };
        let (good, launch) = (result.is_ok(), waiting.launch);
        ended.push(Ended { id: waiting.id, launch, result, held });
        if let How::Named(identity) = waiting.how
            && !good
        {
            self.named.forget(identity);
        }
        if !good || !goes_on {
            return (ended, true);
        }
        waiting.launch += 1;
        let begun = waiting.call.begun_at();
        match &waiting.making.name {
            Some(name) => {
                let work = waiting.making.spec.work(waiting.launch, &self.view.ranks);
                let preparer = self.named.preparer.with_settings(waiting.making.spec.settings);
                waiting.call = preparer.call(&work, Self::limits(waiting.making.limit)).begun(begun).named(name);
            }
            None => {
                let ground_is_live = self.is_live();
                if !ground_is_live {
                    let held = waiting.buffers.pop_front().expect("the list goes on");
                    let result = Err(self.site_error(waiting));
                    ended.push(Ended { id: waiting.id, launch: waiting.launch, result, held });
                    return (ended, true);
                }
                (waiting.call, waiting.how) = self.begin(&waiting.making, waiting.launch, begun);
            }
        }
        (ended, false)
    }

    fn is_live(&self) -> bool {
        let Member { windows, life, view, .. } = self;
        Ground { windows, peers: windows, life, view, clock: windows }.is_live()
    }

    /// The error of a launch that finds the group over before it begins.
    fn site_error(&self, waiting: &Waiting) -> Error {
        let tag = types::Tag::Unnamed(self.unnamed.state.calls() + 1);
        let site = self.view.site(waiting.making.spec.kind.name(), Some(tag));
        self.life.error(site, Duration::ZERO, false)
    }

    fn poll(
        &mut self,
        waiting: &mut Waiting,
        held: &mut Held,
        goes_on: bool,
        look: bool,
        random: &mut Random,
        ends: &Ends,
    ) -> (Poll<Result<()>>, Vec<Ended>) {
        let Member { windows, life, view, unnamed, named, terms, .. } = self;
        let ground = Ground { windows: &*windows, peers: &*windows, life, view, clock: &*windows };
        let mut buffers = held.buffers();
        let (polled, site) = match &mut waiting.how {
            How::Named(identity) => {
                if !waiting.call.is_by(terms) {
                    named.agree(terms);
                    named.preparer.renew(&mut waiting.call);
                }
                let own = Borrowed { identity: *identity, call: &mut waiting.call, buffers, goes_on };
                let progress = named.poll(ground, Some(own), look);
                let polled = progress.borrowed.map_or(Poll::Pending, Poll::Ready);
                if polled.is_pending()
                    && random.chance(1, 2)
                    && let Some(loan) = named.lend(Some(*identity))
                {
                    waiting.how = How::Lent(*identity, Box::new(loan));
                }
                return (polled, self.finish(progress.finished, ends));
            }
            How::Lent(identity, loan) => {
                let polled = poll_lanes(ground, loan.lanes(buffers), look, random);
                if polled.is_pending() && (life.is_live() || !look) {
                    return (polled, Vec::new());
                }
                let identity = *identity;
                let mut over = || life.error(loan.site_of(view), waiting.call.elapsed(windows.now()), true);
                let result = if let Poll::Ready(result) = polled { result } else { Err(over()) };
                let How::Lent(_, loan) = core::mem::replace(&mut waiting.how, How::Named(identity)) else {
                    unreachable!("it was just there");
                };
                let progress = named.settle(*loan, result.clone(), goes_on);
                let polled = Poll::Ready(progress.borrowed.unwrap_or(result));
                return (polled, self.finish(progress.finished, ends));
            }
            How::Whole(execution) => {
                let polled = execution.poll(ground, &mut unnamed.state, &mut waiting.call, &mut buffers, look);
                (polled, execution.site_of(view, &waiting.call))
            }
            How::Cut(cut) => {
                let site = cut.site_of(view);
                let UnnamedLane { state, others, .. } = unnamed;
                let polled = match cut.meet(ground, state, &mut buffers, look) {
                    Poll::Ready(Ok(())) => {
                        let lanes = cut.lanes(state, others, buffers);
                        poll_lanes(ground, lanes, look, random)
                    }
                    other => other,
                };
                (polled, site)
            }
        };
        match polled {
            // Another thread of this process may have ended the epoch.
            Poll::Pending if look && !life.is_live() => {
                let elapsed = waiting.call.elapsed(windows.now());
                (Poll::Ready(Err(life.error(site, elapsed, true))), Vec::new())
            }
            polled => (polled, Vec::new()),
        }
    }
}
