//! What the calls of different ranks are matched by.
//!
//! The tag of a call says which op of which graph it is, and the same op must get the same tag on every rank whatever
//! else a rank has traced before. It is made of
//!
//! * the attribute `tag`, which the Python face fixes when the op is made: the graph or function;
//! * the name of the node. TensorFlow copies the body of a function into the graph that calls it, under the name of
//!   the calling node, so this tells the call sites of one function apart. The numbers that TensorFlow puts in
//!   when it copies a loop body or a branch (`while/body/_12/...`) depend on everything else in the graph and are left
//!   out;
//! * inside a loop, the frame and the iteration, because iterations may overlap and may start in another order on
//!   another rank.
//!
//! The engine counts how often a tag is used, so an op that runs in every step needs no number of its own. To keep the
//! number of tags bounded in long loops, iterations are numbered modulo [`ITERATIONS`]: far more than overlap.

use core::fmt::Write as _;
use std::borrow::Cow;

/// The value of the attribute `tag` that asks for an unnamed call, matched by its number in the group: eager mode.
const UNNAMED: &str = "#";

/// The same in a world of one rank, where there is nobody to meet and threads need not take turns.
const UNNAMED_ALONE: &str = "#alone";

/// Iterations of one loop that have tags of their own. More iterations than this cannot overlap by default (10 do) or
/// by any sensible setting of `parallel_iterations`.
const ITERATIONS: u64 = 1024;

/// Whether the attribute `tag` asks for an unnamed call.
pub(crate) fn is_unnamed(attribute: &str) -> bool {
    matches!(attribute, UNNAMED | UNNAMED_ALONE)
}

/// The part of a tag that is fixed when the kernel is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The calls have no tag; those of one group must not overlap.
    Unnamed,
    /// The calls have no tag and no order.
    UnnamedAlone,
    /// Graph or function, and node.
    Named(String),
}

impl Base {
    /// From the attribute `tag` and the name of the node. A graph that was made elsewhere has no tag: the node's name
    /// must do.
    pub(crate) fn new(attribute: &str, node: &str) -> Base {
        match attribute {
            UNNAMED => Base::Unnamed,
            UNNAMED_ALONE => Base::UnnamedAlone,
            "" => Base::Named(without_numbers(node)),
            graph => Base::Named(format!("{graph}/{}", without_numbers(node))),
        }
    }

    /// The tag of a call in this frame and iteration; `frame` 0 is outside of loops. Empty for an unnamed call.
    pub(crate) fn at(&self, frame: u64, iteration: u64) -> Cow<'_, str> {
        match self {
            Base::Unnamed | Base::UnnamedAlone => Cow::Borrowed(""),
            Base::Named(base) if (frame, iteration) == (0, 0) => Cow::Borrowed(base),
            Base::Named(base) => {
                let mut tag = String::with_capacity(base.len() + 24);
                tag.push_str(base);
                write!(tag, "@{frame:x}.{}", iteration % ITERATIONS).expect("writing to a string does not fail");
                Cow::Owned(tag)
            }
        }
    }

    /// What [`at`](Self::at) has put behind the base in this tag.
    pub(crate) fn suffix_of<'a>(&self, tag: &'a str) -> &'a str {
        match self {
            Base::Unnamed | Base::UnnamedAlone => "",
            Base::Named(base) => tag.strip_prefix(&base[..]).unwrap_or_default(),
        }
    }
}

/// The name without its parts of the form `_12`.
pub(crate) fn without_numbers(node: &str) -> String {
    let number = |part: &&str| {
        part.strip_prefix('_').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    node.split('/').filter(|part| !number(part)).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_names_graph_and_node() {
        assert_eq!(Base::new("step", "a/HcomAllReduce_1").at(0, 0), "step/a/HcomAllReduce_1");
        assert_eq!(Base::new("", "HcomAllReduce").at(0, 0), "HcomAllReduce");
        assert_eq!(Base::new("#", "HcomAllReduce"), Base::Unnamed);
        assert_eq!(Base::new("#alone", "HcomAllReduce"), Base::UnnamedAlone);
        assert_eq!(Base::Unnamed.at(3, 4), "");
        assert_eq!(Base::UnnamedAlone.at(0, 0), "");
    }

    #[test]
    fn numbers_of_copied_bodies_are_left_out() {
        let cases = [
            ("while/body/_12/while/HcomAllReduce", "while/body/while/HcomAllReduce"),
            ("_1/x", "x"),
            ("HcomAllReduce_12", "HcomAllReduce_12"),
            ("a/_b1/_/c", "a/_b1/_/c"),
        ];
        for (node, expected) in cases {
            assert_eq!(without_numbers(node), expected);
        }
    }

    #[test]
    fn overlapping_iterations_and_frames_differ() {
        let base = Base::new("g", "n");
        assert_eq!(base.at(0xab, 5), "g/n@ab.5");
        assert_eq!((base.suffix_of(&base.at(0xab, 5)), base.suffix_of(&base.at(0, 0))), ("@ab.5", ""));
        assert_ne!(base.at(0xab, 5), base.at(0xab, 6));
        assert_ne!(base.at(0xab, 5), base.at(0xac, 5));
        assert_ne!(base.at(0xab, 0), base.at(0, 0));
        let tags: std::collections::HashSet<_> = (0..100 * ITERATIONS).map(|i| base.at(1, i).into_owned()).collect();
        assert_eq!(tags.len(), 1024);
    }
}
