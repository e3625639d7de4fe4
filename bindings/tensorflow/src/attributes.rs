//! The attributes of the op, read from TensorFlow and checked.
//!
//! The Python face checks them when the op is made. They are checked again here, because a graph may come from
//! elsewhere.

use core::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use crate::api::{Api, RawConstruction, RawStatus, StringView, api};
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

/// The attributes as they stand in the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) node: String,
    pub(crate) dtype: c_int,
    pub(crate) reduction: String,
    pub(crate) fusion: i64,
    pub(crate) fusion_id: i64,
    pub(crate) group: String,
    pub(crate) tag: String,
    pub(crate) turn: String,
}

/// The attributes of one kernel, checked.
#[derive(Debug)]
pub(crate) struct Attributes {
    /// Name of the node.
    pub(crate) node: String,
    /// The table's code of the data type.
    pub(crate) dtype: u32,
    /// The table's code of the reduction.
    pub(crate) reduction: u32,
    /// Name of the group.
    pub(crate) group: String,
    /// What calls are matched by.
    pub(crate) tag: Base,
    /// For synchronous kernels: with which nodes it takes turns.
    pub(crate) place: Place,
}

impl Raw {
    /// Reads the attributes of the kernel that TensorFlow is making.
    ///
    /// # Safety
    /// `construction` is alive.
    pub(crate) unsafe fn read(construction: *mut RawConstruction) -> Result<Raw, Failure> {
        let Some(reader) = Reader::new(construction) else {
            // SAFETY: the caller promises that the construction is alive.
            let node = unsafe { cxx::node_def(construction) };
            return Raw::decode(&node.ok_or(Malformed)?);
        };
        Ok(Raw {
            node: reader.node.clone(),
            dtype: reader.data_type(c"T")?,
            reduction: reader.string(c"reduction")?,
            fusion: reader.integer(c"fusion")?,
            fusion_id: reader.integer(c"fusion_id")?,
            group: reader.string(c"group")?,
            tag: reader.string(c"tag")?,
            // Graphs of older versions, and fused ops, have none.
            turn: reader.string(c"turn").unwrap_or_default(),
        })
    }

    /// From an encoded `NodeDef`.
    fn decode(node: &[u8]) -> Result<Raw, Failure> {
        let mut raw = Raw { fusion: 1, fusion_id: -1, ..Raw::default() };
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
        let text = |value| utf8(&self.node, name, node_def::bytes(value)?.to_vec());
        match name {
            "T" => self.dtype = node_def::data_type(value)?,
            "reduction" => self.reduction = text(value)?,
            "fusion" => self.fusion = node_def::integer(value)?,
            "fusion_id" => self.fusion_id = node_def::integer(value)?,
            "group" => self.group = text(value)?,
            "tag" => self.tag = text(value)?,
            "turn" => self.turn = text(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks the attributes. `fusion` and `fusion_id` come first, whatever the reduction.
    pub(crate) fn check(self) -> Result<Arc<Attributes>, Failure> {
        let Raw { node, dtype, reduction, fusion, fusion_id, group, tag, turn } = self;
        let refuse = |text: String| Failure::invalid(format!("HcomAllReduce node '{node}': {text}"));
        if !(0..=2).contains(&fusion) {
            return Err(refuse(format!("fusion: expected 0, 1 or 2, got {fusion}")));
        }
        if fusion == 2 && fusion_id < 0 {
            return Err(refuse(format!("fusion_id: expected 0 or more with fusion=2, got {fusion_id}")));
        }
        let Some((_, reduction)) = REDUCTIONS.iter().find(|(name, _)| *name == reduction) else {
            return Err(refuse(format!("reduction: expected one of sum, max, min, prod, got {reduction:?}")));
        };
        if group.is_empty() || group.len() > MAX_GROUP_BYTES || group.contains('\0') {
            return Err(refuse(format!(
                "group: expected 1 to {MAX_GROUP_BYTES} bytes of UTF-8 without a zero byte, got {} bytes: {group:?}",
                group.len()
            )));
        }
        let Some((_, _, dtype)) = DATA_TYPES.iter().find(|(number, ..)| *number == dtype) else {
            return Err(refuse(format!("T: TensorFlow's data type number {dtype} is not supported")));
        };
        let place = Place::new(&turn, &tag, &node);
        let tag = Base::new(&tag, &node);
        Ok(Arc::new(Attributes { node, dtype: *dtype, reduction: *reduction, group, tag, place }))
    }
}

/// Reads attributes of one construction, by the C API of releases after 1.15.
struct Reader {
    construction: *mut RawConstruction,
    /// For messages.
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
    fn new(construction: *mut RawConstruction) -> Option<Reader> {
        let name = api().TF_OpKernelConstruction_GetName?;
        Some(Reader {
            construction,
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
        utf8(&self.node, &name.to_string_lossy(), bytes)
    }

    fn end<T>(&self, name: &CStr, status: &Status, value: T) -> Result<T, Failure> {
        match status.error() {
            None => Ok(value),
            Some(error) => {
                let (node, name) = (&self.node, name.to_string_lossy());
                Err(Failure::invalid(format!("HcomAllReduce node '{node}': cannot read attribute {name}: {error}")))
            }
        }
    }
}

fn utf8(node: &str, name: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes().escape_ascii();
        Failure::invalid(format!("HcomAllReduce node '{node}': {name}: expected UTF-8, got the bytes {bytes}"))
    })
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        let message = "HcomAllReduce: cannot read the definition of a node of this TensorFlow".into();
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
        }
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
        let read = Raw::decode(&node).expect("well formed");
        assert_eq!(format!("{read:?}"), format!("{:?}", good()));
        assert!(Raw::decode(&node[..node.len() - 1]).is_err());
    }

    #[test]
    fn fusion_is_checked_before_the_reduction() {
        let message = refusal(Raw { fusion: 3, reduction: "mean".into(), ..good() });
        assert!(message.contains("fusion: expected"), "{message}");
        let message = refusal(Raw { fusion: 2, reduction: "mean".into(), ..good() });
        assert!(message.contains("fusion_id: expected"), "{message}");
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
        assert_eq!(crate::kernel::MAX_INPUT_BYTES, types::MAX_INPUT.0);
    }
}
