use std::collections::HashMap;

/// An expression: equal expressions have equal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Symbol(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// The element that a rank has at the place in question, in this call.
    Input { rank: usize, call: usize },
    /// What a rank says in a call about its buffers, or a program leaves there after it: never what anybody wants.
    Other { rank: usize, call: usize },
    /// Left and right operand of the reduction.
    Join(Symbol, Symbol),
}

/// All expressions met so far. They are pointwise: all leaves of one expression stand at the same offset, so a
/// symbol can speak for any interval of bytes.
#[derive(Default)]
pub(super) struct Symbols {
    nodes: Vec<Node>,
    names: HashMap<Node, Symbol>,
    results: HashMap<usize, Symbol>,
    /// The last tree and its operands: a call folds the same ones again and again.
    last: Option<(Vec<Symbol>, Symbol)>,
}

impl Symbols {
    fn name(&mut self, node: Node) -> Symbol {
        *self.names.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            Symbol(self.nodes.len() - 1)
        })
    }

    /// The input of a rank in a call.
    pub(super) fn input(&mut self, rank: usize, call: usize) -> Symbol {
        self.name(Node::Input { rank, call })
    }

    /// What is neither an input nor made of inputs, in a call of a rank.
    pub(super) fn other(&mut self, rank: usize, call: usize) -> Symbol {
        self.name(Node::Other { rank, call })
    }

    /// The canonical tree over these operands: neighbours first, then neighbours of neighbours, and so on. Written
    /// down as it is defined, apart from the code that folds numbers.
    pub(super) fn tree(&mut self, operands: &[Symbol]) -> Symbol {
        if let Some((_, tree)) = self.last.as_ref().filter(|(last, _)| last == operands) {
            return *tree;
        }
        let mut partial = operands.to_vec();
        let mut distance = 1;
        while distance < partial.len() {
            let mut left = 0;
            while left + distance < partial.len() {
                partial[left] = self.name(Node::Join(partial[left], partial[left + distance]));
                left += 2 * distance;
            }
            distance *= 2;
        }
        self.last = Some((operands.to_vec(), partial[0]));
        partial[0]
    }

    /// The canonical tree over all `ranks` ranks' inputs in a call.
    pub(super) fn result(&mut self, ranks: usize, call: usize) -> Symbol {
        if let Some(result) = self.results.get(&call) {
            return *result;
        }
        let inputs: Vec<Symbol> = (0..ranks).map(|rank| self.input(rank, call)).collect();
        let result = self.tree(&inputs);
        self.results.insert(call, result);
        result
    }

    /// An expression in words, as seen from a call: `(r0+r1)+r2`; inputs of other calls are marked.
    pub(super) fn words(&self, symbol: Symbol, call: usize) -> String {
        match self.nodes[symbol.0] {
            Node::Input { rank, call: of } if of == call => format!("r{rank}"),
            Node::Input { rank, call: of } => format!("r{rank} of call {of}"),
            Node::Other { rank, call: of } => format!("no data, of rank {rank} in call {of}"),
            Node::Join(left, right) => {
                let side = |symbol: Symbol| match self.nodes[symbol.0] {
                    Node::Input { .. } | Node::Other { .. } => self.words(symbol, call),
                    Node::Join(..) => format!("({})", self.words(symbol, call)),
                };
                format!("{}+{}", side(left), side(right))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(ranks: usize) -> String {
        let mut symbols = Symbols::default();
        let result = symbols.result(ranks, 0);
        symbols.words(result, 0)
    }

    #[test]
    fn the_canonical_tree_is_what_the_contract_says() {
        let table = [
            (1, "r0"),
            (2, "r0+r1"),
            (3, "(r0+r1)+r2"),
            (4, "(r0+r1)+(r2+r3)"),
            (5, "((r0+r1)+(r2+r3))+r4"),
            (6, "((r0+r1)+(r2+r3))+(r4+r5)"),
            (7, "((r0+r1)+(r2+r3))+((r4+r5)+r6)"),
        ];
        for (ranks, expected) in table {
            assert_eq!(words_of(ranks), expected);
        }
    }

    #[test]
    fn equal_expressions_have_equal_names_and_others_do_not() {
        let mut symbols = Symbols::default();
        let [a, b] = [symbols.input(0, 0), symbols.input(1, 0)];
        assert_eq!(symbols.tree(&[a, b]), symbols.tree(&[a, b]));
        assert_ne!(symbols.tree(&[a, b]), symbols.tree(&[b, a]));
        assert_ne!(symbols.input(0, 0), symbols.input(0, 1));
        assert_ne!(symbols.tree(&[a, b]), symbols.tree(&[a, b, b]));
    }
}
