use core::fmt;
use std::sync::Arc;

use crate::dtype::{DataType, Reduction};
use crate::product::Product;
use crate::rank::{GroupName, Rank};
use crate::{Bytes, Elements};

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Reduce over all ranks and give every rank the result.
    AllReduce = 1,
    /// Return when every rank has entered.
    Barrier = 2,
    /// Give every rank all ranks' contributions, in the order of the group.
    AllGather = 3,
    /// Give every rank what one rank has.
    Broadcast = 4,
}

impl OpKind {
    /// Every kind.
    pub const ALL: [OpKind; 4] = [OpKind::AllReduce, OpKind::Barrier, OpKind::AllGather, OpKind::Broadcast];

    /// The name that messages use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AllReduce => "allreduce",
            OpKind::Barrier => "barrier",
            OpKind::AllGather => "allgather",
            OpKind::Broadcast => "broadcast",
        }
    }

    /// The stable number used on the wire.
    #[must_use]
    #[allow(clippy::as_conversions, reason = "a fieldless repr(u8) enum")]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this [`code`](Self::code), if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<OpKind> {
        Self::ALL.into_iter().find(|k| k.code() == code)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What calls of different ranks are matched by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// The n-th unnamed call of its group, counted from 1.
    Unnamed(u64),
    /// A name that the caller gave.
    Named(Arc<str>),
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tag::Unnamed(sequence) => write!(f, "#{sequence}"),
            Tag::Named(name) => write!(f, "'{name}'"),
        }
    }
}

/// Who is in which call: the beginning of every message about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// The rank that speaks.
    pub rank: Rank,
    /// What it does, such as `allreduce` or `init`.
    pub op: &'static str,
    /// Which call of that group; `None` for what is no call, such as `init`.
    pub tag: Option<Tag>,
    /// The group.
    pub group: GroupName,
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rank, self.op)?;
        if let Some(tag) = &self.tag {
            write!(f, " {tag}")?;
        }
        write!(f, " on group '{}'", self.group)
    }
}

/// The sizes of the parts of a call, in the order in which they stand, as far as ranks compare them: those of the ranks'
/// contributions to an allgather, or of the buffers that one fused call reduces, perhaps with what these are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parts {
    /// How many; 0 for a call that has no parts.
    pub number: u32,
    /// Digest of their sizes, and of what else belongs to them.
    pub digest: u64,
}

impl Parts {
    /// Parts of these sizes, in elements.
    #[must_use]
    pub fn of(sizes: &[usize]) -> Parts {
        let word = |size: &usize| u64::try_from(*size).unwrap_or(u64::MAX);
        let digest = sizes.iter().fold(mix(0x7061_7274, word(&sizes.len())), |hash, size| mix(hash, word(size)));
        Parts { number: u32::try_from(sizes.len()).unwrap_or(u32::MAX), digest }
    }

    /// The same parts, of which the ranks must agree in something more that has this digest, such as their names.
    #[must_use]
    pub fn and(self, digest: u64) -> Parts {
        Parts { digest: mix(self.digest, digest), ..self }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Parts::default() {
            return f.write_str("one buffer");
        }
        write!(f, "{} parts of digest {:016x}", self.number, self.digest)
    }
}

/// What a call must agree on between the ranks of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Kind of the collective.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined.
    pub reduction: Reduction,
    /// Number of elements of the result.
    pub count: Elements,
    /// The rank that gives the data, for kinds that have one.
    pub root: Option<Rank>,
    /// The sizes of its parts, for calls that have such.
    pub parts: Parts,
    /// Generation of the group.
    pub epoch: u64,
    /// Identity of the plan that the rank chose.
    pub plan: u64,
    /// The settings that must agree: the product in the lowest byte, a digest of the rest in the others.
    pub settings: u64,
    /// The name, for named calls; empty for unnamed ones.
    pub name: Arc<str>,
}

/// Why bytes are no [`Fingerprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError;

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are no fingerprint of this version")
    }
}

const FIXED_BYTES: usize = 56;
/// Stands for "no root": no group has so many ranks.
const NO_ROOT: u32 = u32::MAX;

impl Fingerprint {
    /// Room that [`encode`](Self::encode) needs at most.
    pub const MAX_ENCODED_BYTES: usize = 256;

    fn root_code(&self) -> u32 {
        self.root.map_or(NO_ROOT, |root| root.0)
    }

    const MAX_NAME_BYTES: usize = Self::MAX_ENCODED_BYTES - FIXED_BYTES;

    /// The fields as bytes; a name that does not fit is cut at the end (its full text is in the [`hash`](Self::hash)).
    #[must_use]
    #[allow(clippy::as_conversions, reason = "a length below 256")]
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.name.len().min(Self::MAX_NAME_BYTES);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = Vec::with_capacity(FIXED_BYTES + end);
        bytes.extend([self.kind.code(), self.dtype.code(), self.reduction.code(), end as u8]);
        bytes.extend(self.root_code().to_le_bytes());
        for field in [self.count.0, self.epoch, self.plan, self.settings, self.parts.digest] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(u64::from(self.parts.number).to_le_bytes());
        bytes.extend(&self.name.as_bytes()[..end]);
        bytes
    }

    /// The fields from bytes that another rank wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are too short, hold an unknown code, or a name that is no UTF-8.
    pub fn decode(bytes: &[u8]) -> Result<Fingerprint, DecodeError> {
        let fixed = bytes.get(..FIXED_BYTES).ok_or(DecodeError)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&fixed[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let name = bytes.get(FIXED_BYTES..FIXED_BYTES + usize::from(fixed[3])).ok_or(DecodeError)?;
        let mut root = [0; 4];
        root.copy_from_slice(&fixed[4..8]);
        let root = u32::from_le_bytes(root);
        Ok(Fingerprint {
            kind: OpKind::from_code(fixed[0]).ok_or(DecodeError)?,
            dtype: DataType::from_code(fixed[1]).ok_or(DecodeError)?,
            reduction: Reduction::from_code(fixed[2]).ok_or(DecodeError)?,
            count: Elements(word(8)),
            root: (root != NO_ROOT).then_some(Rank(root)),
            parts: Parts { number: u32::try_from(word(48)).map_err(|_| DecodeError)?, digest: word(40) },
            epoch: word(16),
            plan: word(24),
            settings: word(32),
            name: core::str::from_utf8(name).map_err(|_| DecodeError)?.into(),
        })
    }

    /// A 64-bit digest of all fields, the same on every rank and every build.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let codes = [self.kind.code(), self.dtype.code(), self.reduction.code(), 0];
        let parts = [u64::from(self.parts.number), self.parts.digest];
        let words =
            [self.count.0, self.epoch, self.plan, self.settings, u64::from(self.root_code()), parts[0], parts[1]];
        let mut hash = mix(0x666f_6c64, u64::from(u32::from_le_bytes(codes)));
        for word in words {
            hash = mix(hash, word);
        }
        digest(hash, self.name.as_bytes())
    }

    /// The fields in which `self` and `other` differ: name of the field, own value, the other's value.
    #[must_use]
    pub fn differences(&self, other: &Fingerprint) -> Vec<(&'static str, String, String)> {
        let size = |f: &Fingerprint| {
            let bytes = f.count.0.saturating_mul(u64::try_from(f.dtype.size()).unwrap_or(u64::MAX));
            format!("{} elements ({})", f.count, Bytes(bytes))
        };
        let root = |f: &Fingerprint| f.root.map_or_else(|| "none".to_owned(), |root| root.to_string());
        let pairs = [
            ("kind", self.kind.to_string(), other.kind.to_string()),
            ("dtype", self.dtype.to_string(), other.dtype.to_string()),
            ("reduction", self.reduction.to_string(), other.reduction.to_string()),
            ("root", root(self), root(other)),
            ("parts", self.parts.to_string(), other.parts.to_string()),
            ("name", self.name.to_string(), other.name.to_string()),
            ("group epoch", self.epoch.to_string(), other.epoch.to_string()),
            ("settings", format!("{:014x}", self.settings >> 8), format!("{:014x}", other.settings >> 8)),
        ];
        let mut found: Vec<_> = pairs.into_iter().filter(|(_, own, others)| own != others).collect();
        if self.count != other.count {
            let before = |field: &str| matches!(field, "kind" | "dtype" | "reduction" | "root");
            let at = found.iter().position(|(field, ..)| !before(field)).unwrap_or(found.len());
            found.insert(at, ("count", size(self), size(other)));
        }
        // A call that one rank's product refused has no number there: whatever else differs may only follow from that.
        let product = |f: &Fingerprint| Product::of_settings(f.settings).map_or("unknown", Product::name).to_owned();
        if product(self) != product(other) {
            found.insert(0, ("product", product(self), product(other)));
        }
        // The plan follows from the other fields: it is worth a word only when nothing else differs.
        if found.is_empty() && self.plan != other.plan {
            found.push(("plan", format!("{:016x}", self.plan), format!("{:016x}", other.plan)));
        }
        found
    }
}

/// One round of a multiply-and-fold mixer (the finaliser of splitmix64, after Steele, Lea and Flood, 2014).
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Digest of bytes, length included, that does not depend on the build or the machine.
#[must_use]
pub fn digest(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(seed, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash
}

impl Tag {
    /// 128-bit identity of the `uses`-th call with this name, the same on every rank.
    #[must_use]
    pub fn identity(name: &str, uses: u64) -> u128 {
        let low = digest(mix(1, uses), name.as_bytes());
        let high = digest(mix(2, uses), name.as_bytes());
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Fingerprint {
        Fingerprint {
            kind: OpKind::AllReduce,
            dtype: DataType::Float32,
            reduction: Reduction::Sum,
            count: Elements(4),
            root: None,
            parts: Parts::default(),
            epoch: 2,
            plan: 77,
            settings: 5,
            name: "grad/Wé".into(),
        }
    }

    #[test]
    fn encoding_round_trips() {
        let with_all = Fingerprint {
            kind: OpKind::Broadcast,
            root: Some(Rank(0)),
            parts: Parts::of(&[3, usize::MAX, 0]),
            ..sample()
        };
        for fingerprint in [sample(), with_all] {
            assert_eq!(Fingerprint::decode(&fingerprint.encode()), Ok(fingerprint));
        }
        for kind in OpKind::ALL {
            assert_eq!(OpKind::from_code(kind.code()), Some(kind));
        }
    }

    #[test]
    fn a_long_name_is_cut_but_hashed_whole() {
        let long = |end: char| Fingerprint { name: format!("{}{end}", "é".repeat(200)).into(), ..sample() };
        assert!(long('a').encode().len() <= Fingerprint::MAX_ENCODED_BYTES);
        assert!(Fingerprint::decode(&long('a').encode()).is_ok());
        assert_ne!(long('a').hash(), long('b').hash());
    }

    #[test]
    fn decode_refuses_what_it_does_not_know() {
        let good = sample().encode();
        for cut in 0..good.len() {
            assert_eq!(Fingerprint::decode(&good[..cut]), Err(DecodeError));
        }
        for at in 0..3 {
            let mut bad = good.clone();
            bad[at] = 99;
            assert_eq!(Fingerprint::decode(&bad), Err(DecodeError));
        }
    }

    #[test]
    fn every_field_changes_the_hash_and_is_named() {
        let base = sample();
        let changed = [
            ("kind", Fingerprint { kind: OpKind::Barrier, ..sample() }),
            ("dtype", Fingerprint { dtype: DataType::Int32, ..sample() }),
            ("reduction", Fingerprint { reduction: Reduction::Max, ..sample() }),
            ("count", Fingerprint { count: Elements(3), ..sample() }),
            ("root", Fingerprint { root: Some(Rank(0)), ..sample() }),
            ("parts", Fingerprint { parts: Parts::of(&[]), ..sample() }),
            ("group epoch", Fingerprint { epoch: 3, ..sample() }),
            ("plan", Fingerprint { plan: 78, ..sample() }),
            ("settings", Fingerprint { settings: 0x105, ..sample() }),
            ("product", Fingerprint { settings: 6, ..sample() }),
            ("name", Fingerprint { name: "other".into(), ..sample() }),
        ];
        for (field, other) in changed {
            assert_ne!(base.hash(), other.hash(), "{field}");
            let found = base.differences(&other);
            assert_eq!(found.len(), 1, "{field}: {found:?}");
            assert_eq!(found[0].0, field);
        }
        assert!(base.differences(&sample()).is_empty());
    }

    #[test]
    fn parts_tell_lists_apart() {
        let lists: [&[usize]; 8] = [&[], &[0], &[0, 0], &[1], &[1, 2], &[2, 1], &[3], &[1, 2, 0]];
        for (at, list) in lists.iter().enumerate() {
            for other in &lists[at + 1..] {
                assert_ne!(Parts::of(list), Parts::of(other), "{list:?} {other:?}");
            }
            assert_ne!(Parts::of(list).and(1), Parts::of(list).and(2));
            assert_ne!(Parts::of(list).and(0), Parts::of(list));
        }
    }
}
