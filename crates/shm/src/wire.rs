//! What processes of one host say to each other over unix sockets: small packets, each read whole and bounded.

use types::{Cause, Ending, Rank};

/// Version of the packets and of the memory layouts; only equal ones understand each other.
pub(crate) const VERSION: u32 = 2;
const MAGIC: u32 = u32::from_le_bytes(*b"FCST");

/// Ranks in one roster packet. The kernel passes at most 253 descriptors at once.
pub(crate) const ROSTER_BATCH: usize = 64;
/// Descriptors that one packet may carry.
pub(crate) const MAX_DESCRIPTORS: usize = ROSTER_BATCH;
/// More than the longest packet (a full roster) has.
pub(crate) const MAX_PACKET_BYTES: usize = 16 << 10;
/// The longest abstract socket name: `sun_path` without its leading zero.
const MAX_ADDRESS_BYTES: usize = 107;
const MAX_TEXT_BYTES: usize = 2048;
/// Missing ranks that a refusal names at most.
pub(crate) const MAX_NAMED: usize = 64;

/// Where a process serves group memory: an abstract socket's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) Vec<u8>);

/// What stands for a process's life in another one: readable, or at its end, when that process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeKind {
    /// A process handle.
    Pidfd,
    /// The reading end of a pipe whose writing end only that process has.
    Pipe,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) process: u32,
    pub(crate) job: u64,
    pub(crate) life: LifeKind,
    pub(crate) address: Address,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) rank: u32,
    pub(crate) life: LifeKind,
    pub(crate) address: Address,
}

/// Why the hub does not take a rank, or ends the meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Version(u32),
    Job,
    Rank,
    Size(u32),
    /// The process that has the rank already.
    Duplicate(u32),
    /// What rank 0 found wrong with another one: field, expected, got.
    Invalid([String; 3]),
    Died(Rank, Ending),
    Deadline(Vec<u32>),
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A rank to the hub, with its life's descriptor.
    Hello(Hello),
    /// The hub has the rank on its list; with the hub's life's descriptor.
    Accepted(LifeKind),
    /// All ranks are there; with the world segment.
    Welcome(u32),
    /// Some of the ranks, with their lives' descriptors in the same order.
    Roster(Vec<Entry>),
    Refused(Refusal),
    /// A member wants a group's memory.
    Ask {
        key: u128,
        rank: u32,
    },
    /// Here it is: with the descriptor.
    Granted,
    /// The group was destroyed (no text), or could not be made.
    Withdrawn(String),
    /// A process of this user wants to see what the job does.
    Look,
    /// Here it is: with the world segment's descriptor.
    Shown(Shown),
}

/// What a rank knows of its job beside the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Who answers.
    pub(crate) rank: u32,
    pub(crate) job: String,
    /// Ranks that are gone, [`MAX_NAMED`] at most.
    pub(crate) gone: Vec<(Rank, Ending)>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Of another version of Foldcast.
    Version(u32),
    /// Of no version.
    Garbage,
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(64));
        out.u32(MAGIC);
        out.u32(VERSION);
        match self {
            Message::Hello(hello) => {
                out.u32(1);
                for word in [hello.rank, hello.size, hello.process] {
                    out.u32(word);
                }
                out.u64(hello.job);
                out.life(hello.life);
                out.bytes(&hello.address.0);
            }
            Message::Accepted(life) => {
                out.u32(2);
                out.life(*life);
            }
            Message::Welcome(size) => {
                out.u32(3);
                out.u32(*size);
            }
            Message::Roster(entries) => {
                out.u32(4);
                out.len(entries.len());
                for entry in entries {
                    out.u32(entry.rank);
                    out.life(entry.life);
                    out.bytes(&entry.address.0);
                }
            }
            Message::Refused(refusal) => {
                out.u32(5);
                out.refusal(refusal);
            }
            Message::Ask { key, rank } => {
                out.u32(6);
                out.0.extend(key.to_le_bytes());
                out.u32(*rank);
            }
            Message::Granted => out.u32(7),
            Message::Withdrawn(why) => {
                out.u32(8);
                out.text(why);
            }
            Message::Look => out.u32(9),
            Message::Shown(Shown { rank, job, gone }) => {
                out.u32(10);
                out.u32(*rank);
                out.text(job);
                let named = &gone[..gone.len().min(MAX_NAMED)];
                out.len(named.len());
                named.iter().for_each(|(rank, ending)| out.ending(*rank, *ending));
            }
        }
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut reader = Reader(bytes);
        if reader.u32() != Some(MAGIC) {
            return Err(Malformed::Garbage);
        }
        match reader.u32().ok_or(Malformed::Garbage)? {
            VERSION => reader.message().filter(|_| reader.0.is_empty()).ok_or(Malformed::Garbage),
            version => Err(Malformed::Version(version)),
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("packets are shorter than 4 GiB"));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    fn life(&mut self, life: LifeKind) {
        self.u32(match life {
            LifeKind::Pidfd => 1,
            LifeKind::Pipe => 2,
        });
    }

    fn ending(&mut self, rank: Rank, ending: Ending) {
        self.0.extend(Cause::RankDied { peer: rank, ending }.encode());
    }

    fn refusal(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::Version(version) => {
                self.u32(1);
                self.u32(*version);
            }
            Refusal::Job => self.u32(2),
            Refusal::Rank => self.u32(3),
            Refusal::Size(size) => {
                self.u32(4);
                self.u32(*size);
            }
            Refusal::Duplicate(process) => {
                self.u32(5);
                self.u32(*process);
            }
            Refusal::Died(rank, ending) => {
                self.u32(6);
                self.ending(*rank, *ending);
            }
            Refusal::Deadline(missing) => {
                self.u32(7);
                let named = &missing[..missing.len().min(MAX_NAMED)];
                self.len(named.len());
                for rank in named {
                    self.u32(*rank);
                }
            }
            Refusal::Failed(text) => {
                self.u32(8);
                self.text(text);
            }
            Refusal::Invalid(texts) => {
                self.u32(9);
                texts.iter().for_each(|text| self.text(text));
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn len(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.u32()?).ok().filter(|len| *len <= most)
    }

    fn address(&mut self) -> Option<Address> {
        let len = self.len(MAX_ADDRESS_BYTES)?;
        Some(Address(self.take(len)?.to_vec()))
    }

    fn text(&mut self) -> Option<String> {
        let len = self.len(MAX_TEXT_BYTES)?;
        Some(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn ending(&mut self) -> Option<(Rank, Ending)> {
        match Cause::decode(self.take(Cause::ENCODED_BYTES)?.try_into().ok()?)? {
            Cause::RankDied { peer, ending } => Some((peer, ending)),
            _ => None,
        }
    }

    fn life(&mut self) -> Option<LifeKind> {
        match self.u32()? {
            1 => Some(LifeKind::Pidfd),
            2 => Some(LifeKind::Pipe),
            _ => None,
        }
    }

    fn message(&mut self) -> Option<Message> {
        Some(match self.u32()? {
            1 => Message::Hello(Hello {
                rank: self.u32()?,
                size: self.u32()?,
                process: self.u32()?,
                job: self.u64()?,
                life: self.life()?,
                address: self.address()?,
            }),
            2 => Message::Accepted(self.life()?),
            3 => Message::Welcome(self.u32()?),
            4 => {
                let len = self.len(ROSTER_BATCH)?;
                let entry = |_| Some(Entry { rank: self.u32()?, life: self.life()?, address: self.address()? });
                Message::Roster((0..len).map(entry).collect::<Option<_>>()?)
            }
            5 => Message::Refused(self.refusal()?),
            6 => Message::Ask { key: u128::from_le_bytes(self.take(16)?.try_into().ok()?), rank: self.u32()? },
            7 => Message::Granted,
            8 => Message::Withdrawn(self.text()?),
            9 => Message::Look,
            10 => {
                let (rank, job, len) = (self.u32()?, self.text()?, self.len(MAX_NAMED)?);
                let gone = (0..len).map(|_| self.ending()).collect::<Option<_>>()?;
                Message::Shown(Shown { rank, job, gone })
            }
            _ => return None,
        })
    }

    fn refusal(&mut self) -> Option<Refusal> {
        Some(match self.u32()? {
            1 => Refusal::Version(self.u32()?),
            2 => Refusal::Job,
            3 => Refusal::Rank,
            4 => Refusal::Size(self.u32()?),
            5 => Refusal::Duplicate(self.u32()?),
            6 => {
                let (rank, ending) = self.ending()?;
                Refusal::Died(rank, ending)
            }
            7 => {
                let len = self.len(MAX_NAMED)?;
                Refusal::Deadline((0..len).map(|_| self.u32()).collect::<Option<_>>()?)
            }
            8 => Refusal::Failed(self.text()?),
            9 => Refusal::Invalid([self.text()?, self.text()?, self.text()?]),
            _ => return None,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const GONE: (Rank, Ending) = (Rank(9), Ending::Exited(3));

    pub(crate) fn samples() -> Vec<Message> {
        let address = Address(vec![b'a'; MAX_ADDRESS_BYTES]);
        let entry = Entry { rank: 3, life: LifeKind::Pidfd, address: address.clone() };
        let refusals = [
            Refusal::Version(9),
            Refusal::Job,
            Refusal::Rank,
            Refusal::Size(4),
            Refusal::Duplicate(77),
            Refusal::Invalid(["f", "e", "g"].map(String::from)),
            Refusal::Died(Rank(2), Ending::Signalled(9)),
            Refusal::Deadline(vec![1, 2]),
            Refusal::Failed("é".repeat(100)),
        ];
        let mut all = vec![
            Message::Hello(Hello { rank: 1, size: 2, process: 3, job: 4, life: LifeKind::Pipe, address }),
            Message::Accepted(LifeKind::Pidfd),
            Message::Welcome(16),
            Message::Roster(vec![entry; ROSTER_BATCH]),
            Message::Ask { key: 1 << 100, rank: 5 },
            Message::Granted,
            Message::Withdrawn("no memory".into()),
            Message::Look,
            Message::Shown(Shown { rank: 2, job: "j".repeat(MAX_TEXT_BYTES), gone: vec![GONE; MAX_NAMED] }),
        ];
        all.extend(refusals.map(Message::Refused));
        all
    }

    #[test]
    fn messages_round_trip_and_fit_a_packet() {
        for message in samples() {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_PACKET_BYTES, "{message:?}");
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn what_was_cut_or_lengthened_is_garbage() {
        for message in samples() {
            let bytes = message.encode();
            for len in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..len]), Err(Malformed::Garbage), "{message:?} cut to {len}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::decode(&longer), Err(Malformed::Garbage), "{message:?} with a byte more");
        }
    }

    #[test]
    fn lengths_from_outside_are_bounded() {
        let mut roster = Message::Roster(Vec::new()).encode();
        let at = roster.len() - 4;
        roster[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Message::decode(&roster), Err(Malformed::Garbage));
    }

    #[test]
    fn other_versions_are_told_apart_from_garbage() {
        let mut bytes = Message::Granted.encode();
        bytes[4..8].copy_from_slice(&7u32.to_le_bytes());
        assert_eq!(Message::decode(&bytes), Err(Malformed::Version(7)));
        assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(Malformed::Garbage));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let bytes = Message::Refused(Refusal::Failed("é".repeat(5000))).encode();
        let Ok(Message::Refused(Refusal::Failed(text))) = Message::decode(&bytes) else { panic!("no refusal") };
        assert_eq!(text, "é".repeat(1024));
    }
}
