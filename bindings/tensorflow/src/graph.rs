//! A graph as TensorFlow's optimiser hands it over: an encoded `GraphDef`, read without copying.

use std::collections::HashMap;

use crate::node_def;
use crate::wire::{self, Malformed};

/// One node; everything borrowed from the encoded graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node<'a> {
    pub(crate) name: &'a str,
    pub(crate) op: &'a str,
    pub(crate) device: &'a str,
    /// As they are written: `^name` for a control edge, `name` or `name:1` for a tensor.
    pub(crate) inputs: Vec<&'a str>,
    /// Name and encoded value.
    pub(crate) attributes: Vec<(&'a str, &'a [u8])>,
    /// The node as it was encoded.
    pub(crate) raw: &'a [u8],
}

impl<'a> Node<'a> {
    fn decode(raw: &'a [u8]) -> Result<Node<'a>, Malformed> {
        let mut node = Node { raw, ..Node::default() };
        for field in wire::fields(raw) {
            let field = field?;
            match field.number {
                1 => node.name = field.text()?,
                2 => node.op = field.text()?,
                3 => node.inputs.push(field.text()?),
                4 => node.device = field.text()?,
                node_def::ATTRIBUTE => node.attributes.push(node_def::attribute(field.bytes()?)?),
                _ => {}
            }
        }
        Ok(node)
    }

    /// The encoded value of an attribute; empty if there is none.
    pub(crate) fn attribute(&self, name: &str) -> &'a [u8] {
        self.attributes.iter().find(|(known, _)| *known == name).map_or(&[], |(_, value)| value)
    }

    /// The text of an attribute; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> Result<&'a str, Malformed> {
        core::str::from_utf8(node_def::bytes(self.attribute(name))?).map_err(|_| Malformed)
    }

    /// An integer attribute, or this if there is none.
    pub(crate) fn integer(&self, name: &str, default: i64) -> Result<i64, Malformed> {
        match self.attribute(name) {
            [] => Ok(default),
            value => node_def::integer(value),
        }
    }
}

/// An edge, as seen from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Index of the node that it starts from.
    pub(crate) from: usize,
    /// Which output; none for a control edge.
    pub(crate) output: Option<u32>,
}

/// A graph, with its edges.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    pub(crate) nodes: Vec<Node<'a>>,
    /// The edges into each node, in the order of its inputs.
    pub(crate) edges: Vec<Vec<Edge>>,
    /// Whatever else the message holds: the functions, the versions.
    pub(crate) rest: Vec<&'a [u8]>,
}

impl<'a> Graph<'a> {
    /// # Errors
    /// The bytes are no graph: malformed, two nodes of one name, or an edge from nowhere.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Graph<'a>, Malformed> {
        let (mut nodes, mut rest) = (Vec::new(), Vec::new());
        for field in wire::fields(bytes) {
            let field = field?;
            match field.number {
                1 => nodes.push(Node::decode(field.bytes()?)?),
                _ => rest.push(field.raw),
            }
        }
        let indices: HashMap<&str, usize> = nodes.iter().enumerate().map(|(index, node)| (node.name, index)).collect();
        if indices.len() != nodes.len() {
            return Err(Malformed);
        }
        let edge = |input: &&str| {
            let (name, output) = split_input(input).ok_or(Malformed)?;
            let from = *indices.get(name).ok_or(Malformed)?;
            Ok(Edge { from, output })
        };
        let edges = nodes.iter().map(|node| node.inputs.iter().map(edge).collect()).collect::<Result<_, _>>()?;
        Ok(Graph { nodes, edges, rest })
    }
}

/// The name of the node that an input comes from, and which output of it; none for a control edge.
fn split_input(input: &str) -> Option<(&str, Option<u32>)> {
    if let Some(name) = input.strip_prefix('^') {
        return Some((name, None));
    }
    match input.rsplit_once(':') {
        None => Some((input, Some(0))),
        Some((name, output)) => Some((name, Some(output.parse().ok()?))),
    }
}
