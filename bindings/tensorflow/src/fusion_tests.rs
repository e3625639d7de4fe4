//! Graphs, as TensorFlow would hand them over, before and after.

use plan::fusion::{Strategy, ends};

use crate::graph::Graph;
use crate::planning::plan;
use crate::rewrite::{FUSED_OP, rewrite};
use crate::wire::{put_bytes, put_number};

/// Writes graphs.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

pub(crate) type Value<'a> = (&'a str, Vec<u8>);

fn text(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 2, value.as_bytes());
    out
}

fn integer(value: i64) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 3, value.cast_unsigned());
    out
}

fn float() -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 6, 1);
    out
}

impl Writer {
    pub(crate) fn node(&mut self, name: &str, op: &str, inputs: &[&str], attributes: &[Value<'_>]) -> &mut Writer {
        let mut node = Vec::new();
        put_bytes(&mut node, 1, name.as_bytes());
        put_bytes(&mut node, 2, op.as_bytes());
        for input in inputs {
            put_bytes(&mut node, 3, input.as_bytes());
        }
        for (name, value) in attributes {
            let mut entry = Vec::new();
            put_bytes(&mut entry, 1, name.as_bytes());
            put_bytes(&mut entry, 2, value);
            put_bytes(&mut node, 5, &entry);
        }
        put_bytes(&mut self.bytes, 1, &node);
        self
    }

    pub(crate) fn reduce(
        &mut self,
        name: &str,
        inputs: &[&str],
        fusion: i64,
        fusion_id: i64,
        bytes: i64,
    ) -> &mut Writer {
        let attributes = [
            ("T", float()),
            ("reduction", text("sum")),
            ("fusion", integer(fusion)),
            ("fusion_id", integer(fusion_id)),
            ("group", text("world")),
            ("tag", text("step")),
            ("bytes", integer(bytes)),
        ];
        self.node(name, "HcomAllReduce", inputs, &attributes)
    }
}

fn by_default(_: &str, sizes: &[u64]) -> Vec<usize> {
    ends(sizes, &Strategy::default()).expect("the default fits any number")
}

/// The names in each fusion.
fn fused(writer: &Writer) -> Vec<Vec<String>> {
    let graph = Graph::decode(&writer.bytes).expect("well formed");
    let planned = plan(&graph, &by_default).expect("well formed");
    let names = |members: Vec<usize>| members.iter().map(|member| graph.nodes[*member].name.to_owned()).collect();
    planned.into_iter().map(|fusion| names(fusion.members)).collect()
}

#[test]
fn members_stand_in_the_order_of_their_numbers_whatever_the_graph_s() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]);
    for name in ["r_10", "r_2", "r", "r_1"] {
        writer.reduce(name, &["x"], 2, 1, 4);
    }
    assert_eq!(fused(&writer), [["r", "r_1", "r_2", "r_10"]]);
}

#[test]
fn the_fused_op_takes_data_then_control_and_its_members_live_on() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).node("c", "NoOp", &[], &[]);
    writer.reduce("a", &["x", "^c"], 2, 1, 4).reduce("b", &["x:1", "^c"], 2, 1, 8);
    writer.node("use", "Add", &["a", "b"], &[]);
    put_bytes(&mut writer.bytes, 4, b"\x08\x15");
    let rewritten = rewrite(&writer.bytes, &by_default).expect("well formed").expect("fused");
    let graph = Graph::decode(&rewritten.graph).expect("well formed");
    let node = |name: &str| graph.nodes.iter().find(|node| node.name == name).expect("it is there");
    let new = node("a/fused_2");
    assert_eq!((new.op, &new.inputs[..]), (FUSED_OP, &["x", "x:1", "^c"][..]));
    assert_eq!(new.text("alone").expect("an attribute"), "step/a\nstep/b");
    assert_eq!((new.integer("N", 0), new.text("reduction")), (Ok(2), Ok("sum")));
    assert_eq!((node("a").op, node("a").inputs[0]), ("Identity", "a/fused_2"));
    assert_eq!((node("b").op, node("b").inputs[0]), ("Identity", "a/fused_2:1"));
    assert_eq!(node("use").inputs, ["a", "b"]);
    assert_eq!(graph.rest, [b"\x22\x02\x08\x15"]);
    assert_eq!((rewritten.launches[0].bytes, &rewritten.launches[0].members[..]), (12, &["a".into(), "b".into()][..]));
    // What was rewritten has nothing to fuse any more.
    assert!(rewrite(&rewritten.graph, &by_default).expect("well formed").is_none());
}

#[test]
fn a_path_between_members_keeps_them_apart() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).reduce("a", &["x"], 2, 1, 4).node("y", "NoOp", &["^a"], &[]);
    writer.reduce("b", &["x", "^y"], 2, 1, 4).reduce("c", &["x"], 2, 1, 4);
    assert_eq!(fused(&writer), [["a", "c"]]);
}

#[test]
fn of_two_sets_that_need_each_other_one_is_fused() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]);
    writer.node("i", "Identity", &["b2"], &[]).node("j", "Identity", &["a1"], &[]);
    writer.reduce("a1", &["x"], 2, 1, 4).reduce("b2", &["x"], 2, 2, 4);
    // In each set one member is free and one needs the other set's free one, by way of a member of a third kind, so
    // that their depths agree.
    writer.reduce("a2", &["i"], 2, 1, 4).reduce("b1", &["j"], 2, 2, 4);
    assert_eq!(fused(&writer).len(), 1);
}

#[test]
fn branches_and_frames_are_kept_apart() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).node("p", "Placeholder", &[], &[]).node("s", "Switch", &["x", "p"], &[]);
    writer.reduce("t1", &["s:1"], 2, 1, 4).reduce("t2", &["s:1"], 2, 1, 4);
    writer.reduce("f1", &["s"], 2, 1, 4).reduce("f2", &["s"], 2, 1, 4).reduce("o1", &["x"], 2, 1, 4);
    writer.node("m", "Merge", &["f1", "t1"], &[]).node("n", "Merge", &["f2", "t2"], &[]);
    // After the merge both run whatever the branch, like what is outside.
    writer.reduce("m1", &["m"], 2, 1, 4).reduce("m2", &["n"], 2, 1, 4);
    let mut found: Vec<_> = fused(&writer).iter().map(|members| members.join(" ")).collect();
    found.sort();
    assert_eq!(found, ["f1 f2", "m1 m2 o1", "t1 t2"]);
}

#[test]
fn a_loop_is_read_in_spite_of_its_cycle() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).node("e", "Enter", &["x"], &[("frame_name", text("w"))]);
    writer.node("m", "Merge", &["e", "next"], &[]).node("p", "LoopCond", &["m"], &[]);
    writer.node("s", "Switch", &["m", "p"], &[]).reduce("a", &["s:1"], 2, 1, 4).reduce("b", &["s:1"], 2, 1, 4);
    writer.node("sum", "Add", &["a", "b"], &[]).node("next", "NextIteration", &["sum"], &[]);
    writer.node("out", "Exit", &["s"], &[]).reduce("c", &["out"], 2, 1, 4).reduce("d", &["x"], 2, 1, 4);
    let mut found = fused(&writer);
    found.sort();
    assert_eq!(found, [["a", "b"], ["c", "d"]]);
}

#[test]
fn what_is_not_to_be_fused_is_not() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]);
    writer.reduce("a", &["x"], 0, -1, 4).reduce("b", &["x"], 0, -1, 4);
    writer.reduce("c", &["x"], 2, 1, 4).reduce("d", &["x"], 2, 2, 4);
    assert_eq!(fused(&writer), Vec::<Vec<String>>::new());
}

#[test]
fn broken_graphs_are_refused_and_never_panic() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).node("s", "Switch", &["x", "x"], &[]);
    writer.reduce("a", &["s:1"], 2, 1, 4).reduce("b", &["s:1"], 1, 1, 4).reduce("c", &["s:1", "^x"], 1, 1, 4);
    let whole = writer.bytes;
    let run = |bytes: &[u8]| rewrite(bytes, &by_default).map(|rewritten| rewritten.is_some());
    assert_eq!(run(&whole), Ok(true));
    for cut in 0..whole.len() {
        let _ = run(&whole[..cut]);
    }
    // One byte changed, at every place: a xorshift generator chooses to what.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..20_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut changed = whole.clone();
        changed[round % whole.len()] = state.to_le_bytes()[3];
        let _ = run(&changed);
    }
    let mut twice = Writer::default();
    twice.reduce("a", &["x"], 2, 1, 4);
    assert!(run(&twice.bytes).is_err(), "an input from nowhere");
    twice.node("x", "Placeholder", &[], &[]).node("x", "Placeholder", &[], &[]);
    assert!(run(&twice.bytes).is_err(), "two nodes of one name");
}

/// Prints how long a large graph takes: `cargo test --release -p foldcast-tensorflow -- --ignored --nocapture large`.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "it is for reading")]
fn a_large_graph() {
    let mut writer = Writer::default();
    writer.node("n0", "Placeholder", &[], &[]);
    for index in 1..19_000 {
        let (last, other) = (format!("n{}", index - 1), format!("n{}", index / 2));
        writer.node(&format!("n{index}"), "AddV2", &[&last, &other], &[("T", float())]);
    }
    for index in 0..1000 {
        writer.reduce(&format!("r_{index}"), &[&format!("n{}", index * 19)], 1 + index % 2, index / 20, 4096);
    }
    let start = std::time::Instant::now();
    let rewritten = rewrite(&writer.bytes, &by_default).expect("well formed").expect("fused");
    println!("{} launches, {:?}", rewritten.launches.len(), start.elapsed());
}

/// The keys of the calls that a graph's allreduces become, with their members' names.
fn keys(writer: &Writer) -> Vec<(String, Vec<String>)> {
    let graph = Graph::decode(&writer.bytes).expect("well formed");
    let planned = plan(&graph, &by_default).expect("well formed");
    planned.into_iter().map(|fusion| (fusion.key, fusion.names)).collect()
}

#[test]
fn keys_do_not_depend_on_which_members_there_are() {
    let graph = |left_out: &str| {
        let mut writer = Writer::default();
        writer.node("x", "Placeholder", &[], &[]);
        for name in ["a", "b", "c", "d", "e", "f"].into_iter().filter(|name| *name != left_out) {
            writer.reduce(name, &["x"], 1, -1, 4).reduce(&format!("{name}_2"), &["x"], 2, 7, 4);
        }
        keys(&writer)
    };
    let whole = graph("");
    let found: Vec<&str> = whole.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(found, ["step+split.0.0.float", "step+split.0.1.float", "step+id7.0.0.float"]);
    assert_eq!(whole[1].1, ["f"], "a segment of one member is a call like the others");
    for missing in ["a", "c", "f"] {
        let fewer = graph(missing);
        let others: Vec<&str> = fewer.iter().map(|(key, _)| &key[..]).collect();
        assert_eq!(others, found, "without {missing}");
        assert_ne!(fewer, whole);
    }
}

#[test]
fn keys_of_one_graph_differ() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]);
    // Two branches whose deciding nodes have the same name on every rank.
    writer.node("p/_1/p", "Placeholder", &[], &[]).node("p/_2/p", "Placeholder", &[], &[]);
    writer.node("s/_1/s", "Switch", &["x", "p/_1/p"], &[]).node("s/_2/s", "Switch", &["x", "p/_2/p"], &[]);
    writer.reduce("b/_2/y", &["s/_2/s:1"], 2, 1, 4).reduce("b/_2/z", &["s/_2/s:1"], 2, 1, 4);
    writer.reduce("a/_1/y", &["s/_1/s:1"], 2, 1, 4).reduce("a/_1/z", &["s/_1/s:1"], 2, 1, 4);
    writer.reduce("o", &["x"], 2, 1, 4).reduce("q", &["x"], 2, 1, 4);
    writer.reduce("second", &["o"], 2, 1, 4).reduce("third", &["q"], 2, 1, 4);
    let mut found: Vec<_> = keys(&writer).into_iter().map(|(key, members)| (members.join(" "), key)).collect();
    found.sort();
    let key = |at: usize| &found[at].1[..];
    assert_eq!((&found[2].0[..], key(2)), ("o q", "step+id1.0.0.float"));
    assert_eq!((&found[3].0[..], key(3)), ("second third", "step+id1.1.0.float"));
    assert_eq!(key(1), format!("{}~2", key(0)), "of equal keys the later one by name gets a number");
    assert!(key(0).starts_with("step+id1.") && key(0).ends_with(".0.0.float") && key(0).len() > key(2).len());
}

#[test]
fn a_strategy_that_does_not_fit_leaves_all_alone() {
    let mut writer = Writer::default();
    writer.node("x", "Placeholder", &[], &[]).reduce("a", &["x"], 1, -1, 4).reduce("b", &["x"], 1, -1, 4);
    let graph = Graph::decode(&writer.bytes).expect("well formed");
    assert_eq!(plan(&graph, &|_, _| Vec::new()), Ok(Vec::new()));
}

#[test]
fn sizes_that_are_not_known_count_as_equal_ones() {
    for (bytes, segments) in [(1_000_000, [1, 39]), (-1, [39, 1])] {
        let mut writer = Writer::default();
        writer.node("x", "Placeholder", &[], &[]).reduce("a_0", &["x"], 1, -1, bytes);
        for at in 1..40 {
            writer.reduce(&format!("a_{at}"), &["x"], 1, -1, 4);
        }
        let found: Vec<_> = keys(&writer).iter().map(|(_, names)| names.len()).collect();
        assert_eq!(found, segments);
    }
}
