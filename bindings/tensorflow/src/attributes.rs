//! The attributes of the ops, read from TensorFlow and checked.
//!
//! The Python face checks them when the op is made. They are checked again here, because a graph may come from
//! elsewhere.

use core::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use crate::api::{Api, RawConstruction, RawStatus, StringView, api};
use crate::planning::OP;
use crate::rewrite::FUSED_OP;
use crate::status::{Failure, Status, StatusCode};
use crate::tag::Base;
use crate::turns::Place;
use crate::wire::{self, Malformed};
use crate::{cxx, node_def};

/// The longest group name in bytes: 128 with its terminator.
const MAX_GROUP_BYTES: usize = 127;

/// The data types: TensorFlow's number, the name in op definitions, the table's code, and the size of an element.
pub(crate) const DATA_TYPES: [(c_int, &str, u32); 12] = [
    (6, "int8", 1),
    (5, "int16", 2),
    (3, "int32", 3),
    (9, "int64", 4),
    (4, "uint8", 5),
    (17, "uint16", 6),
    (22, "uint32", 7),
    (23, "uint64", 8),
    (19, "half", 9),
    (14, "bfloat16", 10),
    (1, "float", 11),
    (2, "double", 12),
];

/// The reductions: name, and the table's code.
pub(crate) const REDUCTIONS: [(&str, u32); 4] = [("sum", 1), ("max", 2), ("min", 3), ("prod", 4)];

/// What an op does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    AllReduce,
    Fused,
    Broadcast,
    AllGather,
}

impl Kind {
    /// The type name of the op.
    pub(crate) const fn op(self) -> &'static str {
        match self {
            Kind::AllReduce => OP,
            Kind::Fused => FUSED_OP,
            Kind::Broadcast => "HcomBroadcast",
            Kind::AllGather => "HcomAllGather",
        }
    }

    /// What the engine calls it.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Kind::AllReduce | Kind::Fused => "allreduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "allgather",
        }
    }
}

/// The attributes as they stand in the graph; those that an op of this kind has not keep their defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) kind: Kind,
    pub(crate) node: String,
    pub(crate) dtype: c_int,
    pub(crate) reduction: String,
    pub(crate) fusion: i64,
    pub(crate) fusion_id: i64,
    pub(crate) group: String,
    pub(crate) tag: String,
    pub(crate) turn: String,
    pub(crate) key: String,
    pub(crate) members: String,
    pub(crate) alone: String,
    pub(crate) root_rank: i64,
    pub(crate) rank_size: i64,
    pub(crate) unequal: i64,
}

/// The attributes of one kernel, checked.
#[derive(Debug)]
pub(crate) struct Attributes {
    /// What the op does.
    pub(crate) kind: Kind,
    /// Name of the node.
    pub(crate) node: String,
    /// The table's code of the data type; 0 for a broadcast, whose tensors have each its own.
    pub(crate) dtype: u32,
    /// The table's code of the reduction; 0 where nothing is reduced.
    pub(crate) reduction: u32,
    /// The rank in the group that gives, in a broadcast.
    pub(crate) root: u64,
    /// How many ranks an allgather takes the group to have; 0 for any number.
    pub(crate) ranks: u64,
    /// Whether an allgather takes first dimensions that differ.
    pub(crate) unequal: bool,
    /// Name of the group.
    pub(crate) group: String,
    /// What calls are matched by.
    pub(crate) tag: Base,
    /// Names of what was fused, one a line; empty where nothing was.
    pub(crate) members: String,
    /// The tags that what was fused, here and in the calls of the same set, would have alone, one a line.
    pub(crate) alone: String,
    /// For synchronous kernels: with which nodes it takes turns.
    pub(crate) place: Place,
}

impl Raw {
    /// Reads the attributes of the kernel that TensorFlow is making.
    ///
    /// # Safety
    /// `construction` is alive.
    pub(crate) unsafe fn read(construction: *mut RawConstruction, kind: Kind) -> Result<Raw, Failure> {
        let Some(reader) = Reader::new(construction, kind) else {
            // SAFETY: the caller promises that the construction is alive.
            let node = unsafe { cxx::node_def(construction) };
            return Raw::decode(&node.ok_or(Malformed)?, kind);
        };
        let mut raw = Raw {
            kind,
            node: reader.node.clone(),
            fusion: reader.integer(c"fusion")?,
            fusion_id: reader.integer(c"fusion_id")?,
            group: reader.string(c"group")?,
            tag: reader.string(c"tag")?,
            // Graphs of older versions have none.
            turn: reader.string(c"turn").unwrap_or_default(),
            ..Raw::default()
        };
        match kind {
            Kind::AllReduce | Kind::Fused => {
                raw.dtype = reader.data_type(c"T")?;
                raw.reduction = reader.string(c"reduction")?;
                if kind == Kind::Fused {
                    raw.key = reader.string(c"key")?;
                    raw.members = reader.string(c"members")?;
                    raw.alone = reader.string(c"alone")?;
                }
            }
            Kind::Broadcast => raw.root_rank = reader.integer(c"root_rank")?,
            Kind::AllGather => {
                raw.dtype = reader.data_type(c"T")?;
                raw.rank_size = reader.integer(c"rank_size")?;
                raw.unequal = reader.integer(c"unequal")?;
            }
        }
        Ok(raw)
    }

    /// From an encoded `NodeDef`.
    fn decode(node: &[u8], kind: Kind) -> Result<Raw, Failure> {
        let mut raw = Raw { kind, fusion: 1, fusion_id: -1, ..Raw::default() };
        for field in wire::fields(node) {
            let field = field?;
            match field.number {
                node_def::NAME => raw.node = field.text()?.into(),
                node_def::ATTRIBUTE => raw.set(node_def::attribute(field.bytes()?)?)?,
                _ => {}
            }
        }
        Ok(raw)
    }

    fn set(&mut self, (name, value): (&str, &[u8])) -> Result<(), Failure> {
        let text = |value| utf8(self.kind, &self.node, name, node_def::bytes(value)?.to_vec());
        match name {
            // A broadcast has a list of types.
            "T" if self.kind != Kind::Broadcast => self.dtype = node_def::data_type(value)?,
            "reduction" => self.reduction = text(value)?,
            "fusion" => self.fusion = node_def::integer(value)?,
            "fusion_id" => self.fusion_id = node_def::integer(value)?,
            "group" => self.group = text(value)?,
            "tag" => self.tag = text(value)?,
            "turn" => self.turn = text(value)?,
            "key" => self.key = text(value)?,
            "members" => self.members = text(value)?,
            "alone" => self.alone = text(value)?,
            "root_rank" => self.root_rank = node_def::integer(value)?,
            "rank_size" => self.rank_size = node_def::integer(value)?,
            "unequal" => self.unequal = node_def::integer(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks the attributes. `fusion` and `fusion_id` come first, whatever the others.
    pub(crate) fn check(self) -> Result<Arc<Attributes>, Failure> {
        let Raw { kind, fusion, fusion_id, group, .. } = &self;
        if !(0..=2).contains(fusion) {
            return Err(self.refuse(format!("fusion: expected 0, 1 or 2, got {fusion}")));
        }
        // Only allreduces are fused.
        if matches!(kind, Kind::AllReduce | Kind::Fused) && *fusion == 2 && *fusion_id < 0 {
            return Err(self.refuse(format!("fusion_id: expected 0 or more with fusion=2, got {fusion_id}")));
        }
        let reduction = REDUCTIONS.iter().find(|(name, _)| *name == self.reduction);
        let reduction = match (kind, reduction) {
            (Kind::Broadcast | Kind::AllGather, _) => 0,
            (Kind::AllReduce | Kind::Fused, Some((_, code))) => *code,
            (Kind::AllReduce | Kind::Fused, None) => {
                let got = &self.reduction;
                return Err(self.refuse(format!("reduction: expected one of sum, max, min, prod, got {got:?}")));
            }
        };
        if group.is_empty() || group.len() > MAX_GROUP_BYTES || group.contains('\0') {
            return Err(self.refuse(format!(
                "group: expected 1 to {MAX_GROUP_BYTES} bytes of UTF-8 without a zero byte, got {} bytes: {group:?}",
                group.len()
            )));
        }
        let dtype = match kind {
            Kind::Broadcast => 0,
            Kind::AllReduce | Kind::Fused | Kind::AllGather => data_type_code(self.dtype).ok_or_else(|| {
                self.refuse(format!("T: TensorFlow's data type number {} is not supported", self.dtype))
            })?,
        };
        let count = |name, value: i64| {
            u64::try_from(value).map_err(|_| self.refuse(format!("{name}: expected 0 or more, got {value}")))
        };
        let (root, ranks) = (count("root_rank", self.root_rank)?, count("rank_size", self.rank_size)?);
        let Raw { kind, node, group, unequal, key, members, alone, tag, turn, .. } = self;
        let place = Place::new(&turn, &tag, &node);
        let tag = if key.is_empty() { Base::new(&tag, &node) } else { Base::Named(key) };
        let unequal = unequal != 0;
        Ok(Arc::new(Attributes {
            kind,
            node,
            dtype,
            reduction,
            root,
            ranks,
            unequal,
            group,
            tag,
            members,
            alone,
            place,
        }))
    }

    fn refuse(&self, text: String) -> Failure {
        Failure::invalid(format!("{} node '{}': {text}", self.kind.op(), self.node))
    }
}

/// The table's code of a data type that TensorFlow gives this number.
pub(crate) fn data_type_code(number: c_int) -> Option<u32> {
    DATA_TYPES.iter().find(|(known, ..)| *known == number).map(|(_, _, code)| *code)
}

/// Reads attributes of one construction, by the C API of releases after 1.15.
struct Reader {
    construction: *mut RawConstruction,
    /// For messages.
    kind: Kind,
    node: String,
    integer: AttrInt64,
    size: AttrSize,
    string: AttrString,
}

type AttrInt64 = unsafe extern "C" fn(*mut RawConstruction, *const c_char, *mut i64, *mut RawStatus);
type AttrSize = unsafe extern "C" fn(*mut RawConstruction, *const c_char, *mut i32, *mut i32, *mut RawStatus);
type AttrString = unsafe extern "C" fn(*mut RawConstruction, *const c_char, *mut c_char, usize, *mut RawStatus);

/// Whether the C API reads every attribute.
pub(crate) fn has_reader(api: &Api) -> bool {
    api.TF_OpKernelConstruction_GetName.is_some()
        && api.TF_OpKernelConstruction_GetAttrInt64.is_some()
        && api.TF_OpKernelConstruction_GetAttrSize.is_some()
        && api.TF_OpKernelConstruction_GetAttrString.is_some()
}

impl Reader {
    /// The construction must be alive while the reader is used. `None` if the C API lacks a function.
    fn new(construction: *mut RawConstruction, kind: Kind) -> Option<Reader> {
        let name = api().TF_OpKernelConstruction_GetName?;
        Some(Reader {
            construction,
            kind,
            // SAFETY: the construction is alive (see `Raw::read`).
            node: text(unsafe { name(construction) }),
            integer: api().TF_OpKernelConstruction_GetAttrInt64?,
            size: api().TF_OpKernelConstruction_GetAttrSize?,
            string: api().TF_OpKernelConstruction_GetAttrString?,
        })
    }

    fn data_type(&self, name: &CStr) -> Result<c_int, Failure> {
        let status = Status::new();
        let mut value = 0;
        // SAFETY: the construction is alive (see `Raw::read`), the name a C string, the rest places to write to.
        unsafe {
            (api().TF_OpKernelConstruction_GetAttrType)(self.construction, name.as_ptr(), &mut value, status.as_ptr())
        };
        self.end(name, &status, value)
    }

    fn integer(&self, name: &CStr) -> Result<i64, Failure> {
        let status = Status::new();
        let mut value = 0;
        // SAFETY: the construction is alive (see `Raw::read`), the name a C string, the rest places to write to.
        unsafe { (self.integer)(self.construction, name.as_ptr(), &mut value, status.as_ptr()) };
        self.end(name, &status, value)
    }

    fn string(&self, name: &CStr) -> Result<String, Failure> {
        let status = Status::new();
        let (mut list, mut total) = (0, 0);
        // SAFETY: the construction is alive (see `Raw::read`), the name a C string, the rest places to write to.
        unsafe { (self.size)(self.construction, name.as_ptr(), &mut list, &mut total, status.as_ptr()) };
        let total = self.end(name, &status, total)?;
        let mut bytes = vec![0_u8; usize::try_from(total).unwrap_or(0)];
        // SAFETY: as above; `bytes` has room for the length that is passed with it.
        unsafe {
            (self.string)(
                self.construction,
                name.as_ptr(),
                bytes.as_mut_ptr().cast::<c_char>(),
                bytes.len(),
                status.as_ptr(),
            )
        };
        let bytes = self.end(name, &status, bytes)?;
        utf8(self.kind, &self.node, &name.to_string_lossy(), bytes)
    }

    fn end<T>(&self, name: &CStr, status: &Status, value: T) -> Result<T, Failure> {
        match status.error() {
            None => Ok(value),
            Some(error) => {
                let (op, node, name) = (self.kind.op(), &self.node, name.to_string_lossy());
                Err(Failure::invalid(format!("{op} node '{node}': cannot read attribute {name}: {error}")))
            }
        }
    }
}

fn utf8(kind: Kind, node: &str, name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes().escape_ascii();
        Failure::invalid(format!("{} node '{node}': {name}: expected UTF-8, got the bytes {bytes}", kind.op()))
    })
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        let message = "foldcast: cannot read the definition of a node of this TensorFlow".into();
        Failure { code: StatusCode::Internal, message }
    }
}

fn text(view: StringView) -> String {
    if view.data.is_null() {
        return String::new();
    }
    // SAFETY: TensorFlow's view points to that many readable bytes, which live as long as the construction does, and
    // the slice does not leave this function.
    let bytes = unsafe { core::slice::from_raw_parts(view.data.cast::<u8>(), view.len) };
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn good() -> Raw {
        Raw {
            node: "tower/HcomAllReduce".into(),
            dtype: 1,
            reduction: "sum".into(),
            fusion: 1,
            fusion_id: -1,
            group: "hccl_world_group".into(),
            tag: "step".into(),
            turn: "1:".into(),
            ..Raw::default()
        }
    }

    pub(crate) fn moving(kind: Kind) -> Raw {
        Raw { kind, node: "tower/x".into(), fusion: 2, fusion_id: -1, rank_size: 2, ..good() }
    }

    fn refusal(raw: Raw) -> String {
        let failure = raw.check().expect_err("must be refused");
        assert_eq!(failure.code, crate::status::StatusCode::InvalidArgument);
        assert!(failure.message.contains("node 'tower/HcomAllReduce'"), "{}", failure.message);
        failure.message
    }

    #[test]
    fn good_attributes_pass() {
        let checked = good().check().expect("nothing is wrong");
        assert_eq!((checked.dtype, checked.reduction), (11, 1));
        assert_eq!(checked.group, "hccl_world_group");
        for (fusion, fusion_id) in [(0, -1), (0, 5), (1, 5), (2, 0), (2, i64::MAX)] {
            assert!(Raw { fusion, fusion_id, ..good() }.check().is_ok());
        }
    }

    #[test]
    fn bad_attributes_are_refused_with_what_is_allowed() {
        for fusion in [-1, 3, i64::MAX, i64::MIN] {
            let message = refusal(Raw { fusion, ..good() });
            assert!(message.contains("expected 0, 1 or 2") && message.contains(&fusion.to_string()), "{message}");
        }
        let message = refusal(Raw { fusion: 2, ..good() });
        assert!(message.contains("fusion_id") && message.contains("got -1"), "{message}");
        let message = refusal(Raw { reduction: "mean".into(), ..good() });
        assert!(message.contains("sum, max, min, prod") && message.contains("\"mean\""), "{message}");
        for group in [String::new(), "x".repeat(128), "é".repeat(64), "a\0b".into()] {
            let message = refusal(Raw { group: group.clone(), ..good() });
            assert!(message.contains("1 to 127 bytes") && message.contains(&group.len().to_string()), "{message}");
        }
        let message = refusal(Raw { dtype: 7, ..good() });
        assert!(message.contains("number 7"), "{message}");
    }

    #[test]
    fn an_encoded_node_gives_its_attributes() {
        let mut node = Vec::new();
        wire::put_bytes(&mut node, 1, b"tower/HcomAllReduce");
        wire::put_bytes(&mut node, 2, b"HcomAllReduce");
        let mut put = |name: &str, value: &dyn Fn(&mut Vec<u8>)| {
            let (mut entry, mut encoded) = (Vec::new(), Vec::new());
            value(&mut encoded);
            wire::put_bytes(&mut entry, 1, name.as_bytes());
            wire::put_bytes(&mut entry, 2, &encoded);
            wire::put_bytes(&mut node, 5, &entry);
        };
        put("T", &|out| wire::put_number(out, 6, 1));
        put("fusion", &|out| wire::put_number(out, 3, 1));
        put("fusion_id", &|out| wire::put_number(out, 3, u64::MAX));
        for (name, text) in
            [("reduction", "sum"), ("group", "hccl_world_group"), ("tag", "step"), ("turn", "1:"), ("other", "x")]
        {
            put(name, &|out| wire::put_bytes(out, 2, text.as_bytes()));
        }
        let read = Raw::decode(&node, Kind::AllReduce).expect("well formed");
        assert_eq!(format!("{read:?}"), format!("{:?}", good()));
        assert!(Raw::decode(&node[..node.len() - 1], Kind::AllReduce).is_err());
    }

    #[test]
    fn fusion_is_checked_before_the_reduction() {
        let message = refusal(Raw { fusion: 3, reduction: "mean".into(), ..good() });
        assert!(message.contains("fusion: expected"), "{message}");
        let message = refusal(Raw { fusion: 2, reduction: "mean".into(), ..good() });
        assert!(message.contains("fusion_id: expected"), "{message}");
    }

    #[test]
    fn moves_need_no_reduction_and_no_fusion_id() {
        let raw = Raw { reduction: String::new(), dtype: 0, root_rank: 3, ..moving(Kind::Broadcast) };
        let checked = raw.check().expect("nothing is wrong");
        assert_eq!((checked.dtype, checked.reduction, checked.root), (0, 0, 3));
        let checked = Raw { unequal: 1, ..moving(Kind::AllGather) }.check().expect("nothing is wrong");
        assert_eq!((checked.dtype, checked.ranks, checked.unequal), (11, 2, true));
        for (raw, words) in [
            (
                Raw { root_rank: -1, ..moving(Kind::Broadcast) },
                "HcomBroadcast node 'tower/x': root_rank: expected 0 or",
            ),
            (
                Raw { rank_size: -2, ..moving(Kind::AllGather) },
                "HcomAllGather node 'tower/x': rank_size: expected 0 or",
            ),
            (Raw { dtype: 7, ..moving(Kind::AllGather) }, "number 7"),
            (Raw { fusion: 3, ..moving(Kind::AllGather) }, "fusion: expected 0, 1 or 2, got 3"),
            (Raw { group: String::new(), ..moving(Kind::Broadcast) }, "1 to 127 bytes"),
        ] {
            let failure = raw.check().expect_err("must be refused");
            assert!(failure.message.contains(words), "{}", failure.message);
        }
    }

    #[test]
    fn the_longest_group_name_passes() {
        assert!(Raw { group: "x".repeat(127), ..good() }.check().is_ok());
        assert!(Raw { group: "é".repeat(63), ..good() }.check().is_ok());
    }

    #[test]
    fn codes_are_those_of_the_engine() {
        for (_, name, code) in DATA_TYPES {
            let name = match name {
                "half" => "float16",
                "float" => "float32",
                "double" => "float64",
                same => same,
            };
            let expected: types::DataType = name.parse().expect("a known data type");
            assert_eq!(u32::from(expected.code()), code, "{name}");
        }
        for (name, code) in REDUCTIONS {
            let expected: types::Reduction = name.parse().expect("a known reduction");
            assert_eq!(u32::from(expected.code()), code, "{name}");
        }
        assert_eq!(MAX_GROUP_BYTES, types::MAX_GROUP_NAME_BYTES);
        assert_eq!(crate::call::MAX_INPUT_BYTES, types::MAX_INPUT.0);
    }
}
