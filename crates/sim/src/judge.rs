//! Judges how each call ended, by what was asked for and by what really happened in the world.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use types::{Error, OpKind, Rank, Tag};

use crate::cause::{Epoch, Truth};
use crate::scenario::{Circle, Making};
use crate::spec::Spec;
use crate::values;

/// A call as a rank has made it.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) rank: usize,
    /// The rank's index in the group.
    pub(crate) member: usize,
    pub(crate) group: usize,
    pub(crate) spec: Spec,
    pub(crate) name: Option<String>,
    /// The number of its first launch among the unnamed calls of the group, where that is certain.
    number: Option<u64>,
    pub(crate) begun: Duration,
    pub(crate) limit: Option<Duration>,
    /// What each launch met.
    rounds: Vec<Option<Rc<Round>>>,
    ends: Vec<Option<Result<(), Error>>>,
    pub(crate) ended: Option<Duration>,
}

impl Made {
    /// Whether its part is done, so that nobody needs anything of it any more.
    fn is_done(&self) -> bool {
        let done = |end: &Option<Result<(), Error>>| matches!(end, Some(Ok(()) | Err(Error::Mismatch(_))));
        self.ended.is_some() && self.ends.iter().all(done)
    }
}

/// The same launch on all members.
#[derive(Debug)]
struct Round {
    /// By the members' indices.
    partners: Vec<usize>,
    launch: usize,
    agrees: bool,
    want: OnceCell<Vec<u8>>,
}

/// What is known of a group's calls.
#[derive(Debug)]
struct Record {
    circle: Circle,
    /// Unnamed calls that have not met all of the others, with the launch that is next, by member.
    unnamed: Vec<VecDeque<(usize, usize)>>,
    /// Unnamed launches that have begun for certain, by member.
    begun: Vec<u64>,
    /// How often a member has used a name.
    uses: BTreeMap<(usize, String), u64>,
    named: BTreeMap<(String, u64), Vec<Option<usize>>>,
}

/// The judge of a world.
#[derive(Debug)]
pub(crate) struct Judge {
    seed: u64,
    pub(crate) made: Vec<Made>,
    records: Vec<Record>,
    pub(crate) epochs: Vec<Epoch>,
    /// What was found wrong.
    pub(crate) wrong: Vec<String>,
    /// How many calls ended how, for the report.
    pub(crate) tally: BTreeMap<&'static str, u64>,
    pending: BTreeSet<usize>,
}

impl Judge {
    pub(crate) fn new(seed: u64, circles: &[Circle]) -> Judge {
        let record = |circle: &Circle| Record {
            circle: circle.clone(),
            unnamed: vec![VecDeque::new(); circle.members.len()],
            begun: vec![0; circle.members.len()],
            uses: BTreeMap::new(),
            named: BTreeMap::new(),
        };
        Judge {
            seed,
            made: Vec::new(),
            records: circles.iter().map(record).collect(),
            epochs: circles.iter().map(|circle| Epoch::new(circle.members.clone())).collect(),
            wrong: Vec::new(),
            tally: BTreeMap::new(),
            pending: BTreeSet::new(),
        }
    }

    /// Notes a call that a rank makes now.
    pub(crate) fn make(&mut self, mut made: Made) -> usize {
        let (id, group, member) = (self.made.len(), made.group, made.member);
        let launches = made.spec.launches.len();
        made.rounds = vec![None; launches];
        made.ends = vec![None; launches];
        let name = made.name.clone();
        // Of a list that fails, the rest is not begun, and has no numbers.
        let unsure = self.pending.iter().any(|other| {
            let Made { rank, group, spec, .. } = &self.made[*other];
            (*rank, *group) == (made.rank, made.group) && spec.launches.len() > 1
        });
        let record = &mut self.records[group];
        if name.is_none() && !unsure && record.unnamed[member].is_empty() {
            made.number = Some(record.begun[member] + 1);
        }
        self.made.push(made);
        self.pending.insert(id);
        match name {
            None => {
                record.unnamed[member].push_back((id, 0));
                while self.meet_unnamed(group) {}
            }
            Some(name) => {
                let uses = record.uses.entry((member, name.clone())).or_insert(0);
                let key = (name, *uses);
                *uses += 1;
                let members = record.circle.members.len();
                let met = record.named.entry(key).or_insert_with(|| vec![None; members]);
                met[member] = Some(id);
                if let Some(all) = met.iter().copied().collect::<Option<Vec<usize>>>() {
                    self.meet_named(group, &all);
                }
            }
        }
        id
    }

    /// Lets the next unnamed launches of all members meet, if all are there.
    fn meet_unnamed(&mut self, group: usize) -> bool {
        let record = &self.records[group];
        let heads: Option<Vec<_>> = record.unnamed.iter().map(|queue| queue.front().copied()).collect();
        let Some(heads) = heads else { return false };
        let launch = heads[0].1;
        let partners: Vec<usize> = heads.iter().map(|(id, _)| *id).collect();
        let agrees = heads.iter().all(|(_, other)| *other == launch) && self.agree(group, &partners, launch);
        let round = Rc::new(Round { partners, launch, agrees, want: OnceCell::new() });
        for (member, (id, launch)) in heads.into_iter().enumerate() {
            self.made[id].rounds[launch] = Some(Rc::clone(&round));
            let last = launch + 1 == self.made[id].rounds.len();
            let record = &mut self.records[group];
            record.begun[member] += 1;
            let queue = &mut record.unnamed[member];
            queue.pop_front();
            if agrees && !last {
                queue.push_front((id, launch + 1));
            }
        }
        true
    }

    fn meet_named(&mut self, group: usize, partners: &[usize]) {
        let launches = partners.iter().map(|id| self.made[*id].rounds.len()).min().unwrap_or(0);
        for launch in 0..launches {
            let agrees = self.agree(group, partners, launch);
            let round = Rc::new(Round { partners: partners.to_vec(), launch, agrees, want: OnceCell::new() });
            for id in partners {
                self.made[*id].rounds[launch] = Some(Rc::clone(&round));
            }
            if !agrees {
                break;
            }
        }
    }

    fn agree(&self, group: usize, partners: &[usize], launch: usize) -> bool {
        let first = &self.made[partners[0]].spec;
        let same = partners.iter().all(|id| first.difference(&self.made[*id].spec, launch).is_none());
        let epochs = &self.records[group].circle.epochs;
        same && epochs.iter().all(|epoch| *epoch == epochs[0])
    }

    /// The input of a launch.
    pub(crate) fn input(&self, id: usize, launch: usize) -> Vec<u8> {
        let made = &self.made[id];
        let words = [self.seed, number(id), number(launch)].map(u64::to_le_bytes).concat();
        let elements = made.spec.given(launch, made.member);
        values::input(made.spec.dtype, elements, types::digest(1, &words))
    }

    fn want(&self, round: &Round) -> Vec<u8> {
        let spec = &self.made[round.partners[0]].spec;
        let input = |id: &usize| self.input(*id, round.launch);
        match spec.kind {
            OpKind::Barrier => Vec::new(),
            OpKind::Broadcast => input(&round.partners[spec.root.unwrap_or(0)]),
            OpKind::AllGather => round.partners.iter().flat_map(input).collect(),
            OpKind::AllReduce => {
                let inputs: Vec<Vec<u8>> = round.partners.iter().map(input).collect();
                values::tree(spec.dtype, spec.reduction, &inputs)
            }
        }
    }

    /// A launch has ended so, with this in its buffers. `input`: what the input holds now, if it is a buffer of its own.
    pub(crate) fn end(
        &mut self,
        (id, launch): (usize, usize),
        result: Result<(), Error>,
        (input, output): (Option<&[u8]>, &[u8]),
        truth: &Truth<'_>,
    ) {
        let verdict = match &result {
            Ok(()) => self.judge_right(id, launch, output),
            Err(error) => self.judge_wrong(id, launch, error, truth),
        };
        if let Err(why) = verdict {
            self.complain(id, launch, &why);
        }
        if input.is_some_and(|input| input != self.input(id, launch)) {
            self.complain(id, launch, "its input was written");
        }
        let kind = match &result {
            Ok(()) => "right",
            Err(Error::Mismatch(_)) => "mismatch",
            Err(Error::RankDied(_)) => "rank died",
            Err(Error::Deadline(_)) => "deadline",
            Err(Error::GroupAborted(_)) => "group aborted",
            Err(Error::Closed { .. }) => "closed",
            Err(_) => "other",
        };
        *self.tally.entry(kind).or_default() += 1;
        let made = &mut self.made[id];
        if made.ends[launch].replace(result).is_some() {
            self.complain(id, launch, "it ended twice");
        } else if made.ends.iter().all(Option::is_some) {
            made.ended = Some(truth.host.now());
            self.pending.remove(&id);
        }
    }

    /// A call was refused when it was made, because its group is over.
    pub(crate) fn refused(&mut self, rank: usize, group: usize, error: &Error) {
        *self.tally.entry("refused").or_default() += 1;
        if let Err(why) = self.epochs[group].judge_over(rank, error) {
            self.wrong.push(format!("rank {rank}, a call on group {group} that is refused: {why}: {error}"));
        }
    }

    fn judge_right(&self, id: usize, launch: usize, output: &[u8]) -> Result<(), String> {
        let round = self.made[id].rounds[launch].as_ref().ok_or("right, though not all ranks have made it")?;
        if !round.agrees {
            return Err("right, though the ranks disagree".into());
        }
        let want = round.want.get_or_init(|| self.want(round));
        if want != output {
            let at = want.iter().zip(output).position(|(want, got)| want != got);
            return Err(format!("a wrong result of {} bytes ({} wanted), first at {at:?}", output.len(), want.len()));
        }
        Ok(())
    }

    fn judge_wrong(&self, id: usize, launch: usize, error: &Error, truth: &Truth<'_>) -> Result<(), String> {
        let made = &self.made[id];
        if let Some(Some(Err(before))) = launch.checked_sub(1).map(|before| &made.ends[before]) {
            // It was not begun.
            return if before == error {
                Ok(())
            } else {
                Err(format!("the list failed with {before}, its rest: {error}"))
            };
        }
        self.judge_site(made, launch, error)?;
        match error {
            Error::Mismatch(mismatch) => {
                let round = made.rounds[launch].as_ref().ok_or("a mismatch, though not all ranks have made it")?;
                let members = &self.records[made.group].circle.members;
                let epochs = &self.records[made.group].circle.epochs;
                let difference = |other: usize| {
                    let found = made.spec.difference(&self.made[round.partners[other]].spec, launch);
                    match found {
                        None | Some("settings") if epochs[made.member] != epochs[other] => Some("group epoch"),
                        found => found,
                    }
                };
                let first = (0..members.len()).find_map(|other| Some((other, difference(other)?)));
                let (other, field) = first.ok_or("a mismatch, though the ranks agree")?;
                if (mismatch.field, mismatch.peer) != (field, Rank::from_index(members[other])) {
                    return Err(format!("a mismatch in {field} with rank {} is told as", members[other]));
                }
                let told = mismatch.values.iter().map(|(rank, _)| rank.index());
                if !told.eq(members.iter().copied()) || mismatch.expected == mismatch.got {
                    return Err("the values of a mismatch are not those of the ranks".into());
                }
                Ok(())
            }
            Error::Deadline(deadline) => {
                let limit = made.limit.ok_or("a deadline that it does not have")?;
                if truth.host.now() < made.begun + limit || deadline.limit != limit {
                    return Err(format!("a deadline of {limit:?} after {:?}", truth.host.now() - made.begun));
                }
                self.judge_late(made, &deadline.peers)?;
                self.epochs[made.group].is_over(error)
            }
            _ => self.epochs[made.group].judge_over(made.rank, error),
        }
    }

    /// Whether the ranks that are said to be late can be.
    fn judge_late(&self, made: &Made, peers: &[Rank]) -> Result<(), String> {
        let members = &self.records[made.group].circle.members;
        let known = |peer: &Rank| members.contains(&peer.index()) && peer.index() != made.rank;
        if peers.is_empty() || !peers.iter().all(known) {
            return Err("the late ranks are not others of the group".into());
        }
        // Who has not made the call at all, though all others have, is late for certain.
        let key = made.name.as_ref().map(|name| (made.member, name.clone()));
        let missing = key.and_then(|key| {
            let record = &self.records[made.group];
            // Only of the last use it is known which one it is.
            let met = record.named.get(&(key.1.clone(), record.uses.get(&key)? - 1))?;
            let own = met[made.member].is_some_and(|id| std::ptr::eq(&raw const self.made[id], made));
            let mut absent = met.iter().enumerate().filter(|(_, id)| id.is_none());
            let first = absent.next().filter(|_| own)?.0;
            absent.next().is_none().then_some(first)
        });
        match missing {
            Some(absent) if !peers.contains(&Rank::from_index(members[absent])) => {
                Err(format!("rank {} has not come and is not named", members[absent]))
            }
            _ => Ok(()),
        }
    }

    /// Whether the message is about this call.
    fn judge_site(&self, made: &Made, launch: usize, error: &Error) -> Result<(), String> {
        let site = match error {
            Error::Mismatch(e) => &e.site,
            Error::RankDied(e) => &e.site,
            Error::Deadline(e) => &e.site,
            Error::GroupAborted(e) => &e.site,
            _ => return Ok(()),
        };
        let tag = match (&made.name, made.number) {
            (Some(name), _) => Some(Tag::Named(name.as_str().into())),
            (None, Some(first)) => Some(Tag::Unnamed(first + number(launch))),
            (None, None) => site.tag.clone(),
        };
        let right = site.rank.index() == made.rank && site.op == made.spec.kind.name() && site.tag == tag;
        if right { Ok(()) } else { Err(format!("told of {:?}, not of {tag:?}", site.tag)) }
    }

    /// Looks whether a group's epoch has ended, and why; to be called after each turn, before its ends are judged.
    pub(crate) fn watch(&mut self, truth: &Truth<'_>) {
        for group in 0..self.epochs.len() {
            let (author, cause) = match self.epochs[group].begins_to_end(&truth.memories[group]) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(why) => {
                    self.wrong.push(format!("group {group}: {why}"));
                    continue;
                }
            };
            let rank = self.records[group].circle.members[author];
            let of_rank = |id: &usize| self.made[*id].group == group && self.made[*id].rank == rank;
            let pending: Vec<usize> = self.pending.iter().copied().filter(of_rank).collect();
            let needs = |peer: usize| pending.iter().any(|id| self.needs(*id, peer));
            let late = pending.iter().any(|id| {
                let made = &self.made[*id];
                made.limit.is_some_and(|limit| truth.host.now() >= made.begun + limit)
            });
            if let Err(why) = self.epochs[group].judge_cause(rank, &cause, truth, &needs, late) {
                self.wrong.push(format!("group {group} is ended by rank {rank} because {cause}: {why}"));
            }
        }
    }

    /// Whether a call still needs something of a rank: it has not done its part.
    pub(crate) fn needs(&self, id: usize, rank: usize) -> bool {
        let made = &self.made[id];
        let Some(at) = self.records[made.group].circle.members.iter().position(|member| *member == rank) else {
            return false;
        };
        match made.rounds.last().and_then(Option::as_ref) {
            Some(round) => !self.made[round.partners[at]].is_done(),
            None => match made.rounds[0].as_ref() {
                Some(round) => !self.made[round.partners[at]].is_done(),
                None => true,
            },
        }
    }

    /// Whether this call is the next of its rank for which nothing but a rank's absence can be the reason that it has not
    /// ended: that one has not made it.
    pub(crate) fn awaits_absent(&self, id: usize, rank: usize) -> bool {
        let made = &self.made[id];
        let record = &self.records[made.group];
        let Some(at) = record.circle.members.iter().position(|member| *member == rank) else { return false };
        if made.rounds[0].is_some() {
            return false;
        }
        match &made.name {
            Some(name) => {
                let own = |met: &&Vec<Option<usize>>| met[made.member] == Some(id);
                let uses = (0..).map_while(|uses| record.named.get(&(name.clone(), uses)));
                uses.into_iter().find(own).is_some_and(|met| met[at].is_none())
            }
            None => {
                let same = |other: &usize| {
                    let other = &self.made[*other];
                    other.rank == made.rank && other.group == made.group && other.name.is_none()
                };
                record.unnamed[at].is_empty() && self.pending().find(same) == Some(id)
            }
        }
    }

    /// Since when a call is the next of its rank: those before it have ended.
    pub(crate) fn next_since(&self, id: usize) -> Duration {
        let made = &self.made[id];
        let before = self.made[..id].iter().filter(|before| (before.rank, before.group) == (made.rank, made.group));
        let unnamed = before.filter(|before| before.name.is_none() && made.name.is_none());
        unnamed.filter_map(|before| before.ended).fold(made.begun, Duration::max)
    }

    /// Calls that have not ended.
    pub(crate) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().copied()
    }

    /// The calls of a rank that is no more are nobody's.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.pending.retain(|id| self.made[*id].rank != rank);
    }

    pub(crate) fn describe(&self, id: usize) -> String {
        let Made { rank, group, spec, name, number, begun, .. } = &self.made[id];
        let tag = match (name, number) {
            (Some(name), _) => format!("'{name}'"),
            (None, Some(number)) => format!("#{number}"),
            (None, None) => "#?".into(),
        };
        format!("rank {rank}, group {group}, call {id} {tag} ({spec}), begun at {begun:?}")
    }

    fn complain(&mut self, id: usize, launch: usize, why: &str) {
        let text = format!("{}, launch {launch}: {why}", self.describe(id));
        self.wrong.push(text);
    }
}

impl Made {
    pub(crate) fn new(rank: usize, (group, member): (usize, usize), making: &Making, now: Duration) -> Made {
        Made {
            rank,
            member,
            group,
            spec: making.spec.clone(),
            name: making.name.clone(),
            number: None,
            begun: now,
            limit: making.limit,
            rounds: Vec::new(),
            ends: Vec::new(),
            ended: None,
        }
    }
}

fn number(index: usize) -> u64 {
    u64::try_from(index).expect("usize is at most 64 bits wide")
}
