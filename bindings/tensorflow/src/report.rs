//! What was fused, for whoever wants to see it: the newest launches, as JSON.

use core::ffi::c_char;
use core::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::attributes::DATA_TYPES;
use crate::rewrite::Launch;

/// Launches that are kept.
const KEPT: usize = 10_000;

static LAUNCHES: Mutex<Vec<Launch>> = Mutex::new(Vec::new());

/// Takes down the launches of a graph that was compiled.
pub(crate) fn add(launches: Vec<Launch>) {
    let mut kept = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(launches);
    let surplus = kept.len().saturating_sub(KEPT);
    kept.drain(..surplus);
}

/// Writes the report, a JSON list of objects in UTF-8, if it fits into `capacity` bytes; gives its length. With `clear`
/// not 0, forgets what it has written.
///
/// # Safety
/// `buffer` points to `capacity` bytes that may be written.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foldcast_tensorflow_fusion_report(buffer: *mut c_char, capacity: usize, clear: u32) -> usize {
    let mut launches = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
    let text = json(&launches);
    if text.len() <= capacity {
        // SAFETY: the caller promises the room.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len()) };
        if clear != 0 {
            launches.clear();
        }
    }
    text.len()
}

fn json(launches: &[Launch]) -> String {
    let each = launches.iter().map(|launch| {
        let Launch { group, dtype, fusion, fusion_id, members, bytes } = launch;
        let dtype = DATA_TYPES.iter().find(|(number, ..)| number == dtype).map_or("", |(_, name, _)| name);
        let members: Vec<_> = members.iter().map(|member| quoted(member)).collect();
        format!(
            r#"{{"group": {}, "dtype": {}, "fusion": {fusion}, "fusion_id": {fusion_id}, "members": [{}], "bytes": {bytes}}}"#,
            quoted(group),
            quoted(dtype),
            members.join(", ")
        )
    });
    format!("[{}]", each.collect::<Vec<_>>().join(",\n"))
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter < ' ' => write!(out, "\\u{:04x}", u32::from(letter)).expect("writing to a string"),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let launch = Launch {
            group: "a\"\\\n".into(),
            dtype: 19,
            fusion: 2,
            fusion_id: 7,
            members: vec!["x".into(), "é".into()],
            bytes: 12,
        };
        assert_eq!(
            json(&[launch]),
            r#"[{"group": "a\"\\\u000a", "dtype": "half", "fusion": 2, "fusion_id": 7, "members": ["x", "é"], "bytes": 12}]"#
        );
        assert_eq!(json(&[]), "[]");
    }
}
