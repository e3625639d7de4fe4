//! Ranks that submit calls of every kind to the two queues of their group.

use std::time::Duration;

use foldcast_engine::{Limits, NamedLane, Task, UnnamedLane, Work};
use types::transport::Clock;
use types::{DataType, OpKind, Rank, Reduction};

use super::{Actor, LANES, LIMITS, Outcome, Owned, Random, Seat, World, collector, element, ended, input, sums};

/// One call as a rank makes it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DataType,
    pub(crate) reduction: Reduction,
    /// Elements of the output.
    pub(crate) count: usize,
    pub(crate) root: usize,
    /// Elements of each rank's piece, in an allgather.
    pub(crate) counts: Vec<usize>,
    pub(crate) name: Option<String>,
    pub(crate) in_place: bool,
}

impl Request {
    pub(crate) fn sum(count: usize) -> Request {
        Request {
            kind: OpKind::AllReduce,
            dtype: DataType::Int32,
            reduction: Reduction::Sum,
            count,
            root: 0,
            counts: Vec::new(),
            name: None,
            in_place: false,
        }
    }

    pub(crate) fn broadcast(root: usize, count: usize) -> Request {
        Request { kind: OpKind::Broadcast, root, ..Request::sum(count) }
    }

    pub(crate) fn gather(counts: &[usize]) -> Request {
        Request { kind: OpKind::AllGather, counts: counts.to_vec(), ..Request::sum(counts.iter().sum()) }
    }

    /// With this name, or without one.
    pub(crate) fn named<'a>(self, name: impl Into<Option<&'a str>>) -> Request {
        Request { name: name.into().map(str::to_owned), ..self }
    }

    pub(crate) fn work(&self) -> Work {
        match self.kind {
            OpKind::AllReduce => Work::all_reduce(self.dtype, self.reduction, self.count * self.dtype.size()),
            OpKind::Barrier => Work::barrier(),
            OpKind::Broadcast => {
                Work::broadcast(self.dtype, self.count * self.dtype.size(), self.root, Rank::from_index(10 * self.root))
            }
            OpKind::AllGather => Work::all_gather(self.dtype, &self.counts),
        }
    }

    /// Where a rank's own elements stand in the output.
    fn own(&self, rank: usize) -> std::ops::Range<usize> {
        if self.kind != OpKind::AllGather {
            return 0..self.count;
        }
        let start = self.counts[..rank].iter().sum();
        start..start + self.counts[rank]
    }

    /// What all ranks must get.
    pub(crate) fn expected(&self, ranks: usize) -> Vec<i32> {
        match self.kind {
            OpKind::AllReduce | OpKind::Barrier => sums(ranks, self.count),
            OpKind::Broadcast => (0..self.count).map(|at| element(self.root, at)).collect(),
            OpKind::AllGather => {
                let owners = self.counts.iter().enumerate();
                owners.flat_map(|(owner, count)| (0..*count).map(move |at| element(owner, at))).collect()
            }
        }
    }
}

/// The queues of a rank, as a group has them.
pub(crate) struct Queues {
    pub(crate) seat: Seat,
    pub(crate) unnamed: UnnamedLane,
    pub(crate) named: NamedLane,
    pub(crate) limits: Limits,
}

impl Queues {
    pub(crate) fn new(seat: Seat) -> Queues {
        let (unnamed, named) = (UnnamedLane::new(seat.preparer(LANES)), NamedLane::new(seat.preparer(LANES)));
        Queues { seat, unnamed, named, limits: LIMITS }
    }

    /// What is submitted for a request, and what follows it in the same submission.
    pub(crate) fn task(&mut self, request: &Request, next: Option<Box<Task>>) -> (Task, Outcome) {
        let lane = if request.name.is_some() { &mut self.named.preparer } else { &mut self.unnamed.preparer };
        let call = lane.call(&request.work(), self.limits).started(self.seat.windows.now());
        let call = request.name.as_ref().map_or(call.clone(), |name| call.named(name));
        let (rank, size) = (self.seat.rank(), request.dtype.size());
        let own = request.own(rank);
        let buffers = Owned::new(input(rank, own.len()), request.count * size, own.start * size, request.in_place);
        let outcome = Outcome::default();
        (Task { call, buffers: Box::new(buffers), done: collector(&outcome), next }, outcome)
    }

    fn queue(&mut self, request: &Request, task: Task) {
        match request.name {
            Some(_) => self.named.submit(task),
            None => self.unnamed.submit(task),
        }
    }

    pub(crate) fn submit(&mut self, request: &Request) -> Outcome {
        let (task, outcome) = self.task(request, None);
        if self.seat.life.is_live() {
            self.queue(request, task);
        } else {
            // As a front end does: a call that finds the group over is refused when it is made.
            let site = self.seat.view.site(request.kind.name(), None);
            *outcome.lock().unwrap() = Some(Err(self.seat.life.error(site, Duration::ZERO, false)));
        }
        outcome
    }

    /// Submits calls that follow each other as one.
    pub(crate) fn submit_list(&mut self, requests: &[Request]) -> Vec<Outcome> {
        let (mut next, mut outcomes) = (None, Vec::new());
        for request in requests.iter().rev() {
            let (task, outcome) = self.task(request, next);
            outcomes.push(outcome);
            next = Some(Box::new(task));
        }
        self.queue(&requests[0], *next.expect("a list is not empty"));
        outcomes.reverse();
        outcomes
    }

    pub(crate) fn poll(&mut self, look: bool) {
        let ground = self.seat.ground();
        let mut finished = self.unnamed.poll(ground, look);
        finished.extend(self.named.poll(ground, None, look).finished);
        finished.into_iter().for_each(|(task, result)| task.finish(result));
    }
}

impl Actor for Queues {
    fn step(&mut self, random: &mut Random) {
        let look = random.below(4) == 0;
        self.poll(look);
    }
}

impl AsMut<Queues> for Queues {
    fn as_mut(&mut self) -> &mut Queues {
        self
    }
}

impl<A: Actor + AsMut<Queues>> World<A> {
    /// All ranks make this call.
    pub(crate) fn submit(&mut self, request: &Request) -> Vec<Outcome> {
        self.submit_each(|_| request.clone())
    }

    /// All ranks make a call, each the one for its index.
    pub(crate) fn submit_each(&mut self, request: impl Fn(usize) -> Request) -> Vec<Outcome> {
        let actors = self.actors.iter_mut().enumerate();
        actors.map(|(rank, actor)| actor.as_mut().submit(&request(rank))).collect()
    }

    /// All ranks make this call and it must be right.
    pub(crate) fn good_call(&mut self, request: &Request) {
        let outcomes = self.submit(request);
        self.run(&outcomes);
        let want = request.expected(self.ranks());
        for outcome in &outcomes {
            assert_eq!(ended(outcome).expect("a good call"), want, "{request:?}");
        }
    }
}
