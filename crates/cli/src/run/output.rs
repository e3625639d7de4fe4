//! The ranks' output: whole lines, each with its rank, written without ever blocking the launcher.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Longer lines are broken, so that a rank that never ends its line costs no more memory than this.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;

/// While more than this waits to be written nothing more is read: then the ranks wait, as they would without us.
const MAX_PENDING_BYTES: usize = 256 * 1024;

/// A pipe that polls as writable takes this much without blocking (`PIPE_BUF`).
const WRITE_BYTES: usize = 4096;

/// Writes before others get their turn.
const WRITES: usize = 16;

/// Cuts the output of one rank into lines and puts its prefix before each.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: String,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(prefix: String) -> Lines {
        Lines { prefix, partial: Vec::new() }
    }

    /// Takes what the rank wrote; appends the lines that are complete.
    pub(super) fn push(&mut self, bytes: &[u8], lines: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(piece.strip_suffix(b"\n").unwrap_or(piece));
            while self.partial.len() > MAX_LINE_BYTES {
                let cut = character_boundary(&self.partial, MAX_LINE_BYTES);
                let rest = self.partial.split_off(cut);
                self.emit(lines);
                self.partial = rest;
            }
            if piece.ends_with(b"\n") {
                self.emit(lines);
            }
        }
    }

    /// The rank has closed its end: completes the last line.
    pub(super) fn finish(&mut self, lines: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            self.emit(lines);
        }
    }

    fn emit(&mut self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.prefix.as_bytes());
        lines.append(&mut self.partial);
        lines.push(b'\n');
    }
}

/// The last place at or before `limit` that does not cut a character of UTF-8; `limit` if the text is none.
fn character_boundary(text: &[u8], limit: usize) -> usize {
    let continues = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    (limit.saturating_sub(3)..=limit).rev().find(|at| !continues(at)).unwrap_or(limit)
}

/// What became of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All that could be written now is.
    Fine,
    /// Nobody reads any more.
    Closed,
    /// The system refuses for another reason, such as a full disk.
    Failed(Errno),
}

/// One of the launcher's own output streams, with what waits to be written to it.
#[derive(Debug)]
pub(super) struct Sink {
    stream: BorrowedFd<'static>,
    pending: Vec<u8>,
    written: usize,
    mid_line: bool,
    closed: bool,
}

impl Sink {
    pub(super) fn new(stream: BorrowedFd<'static>) -> Sink {
        Sink { stream, pending: Vec::new(), written: 0, mid_line: false, closed: false }
    }

    pub(super) fn stream(&self) -> BorrowedFd<'static> {
        self.stream
    }

    /// Where to append whole lines.
    pub(super) fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Whether everything is written, or can never be.
    pub(super) fn is_empty(&self) -> bool {
        self.closed || self.written == self.pending.len()
    }

    pub(super) fn is_full(&self) -> bool {
        !self.closed && self.pending.len() - self.written > MAX_PENDING_BYTES
    }

    /// Whether the last write ended within a line, which nobody else may interrupt.
    pub(super) fn is_mid_line(&self) -> bool {
        self.mid_line && !self.closed
    }

    /// Writes while the stream takes it, so much at a time that it does not block.
    pub(super) fn write(&mut self) -> Written {
        for _ in 0..WRITES {
            if self.is_empty() || !is_writable(self.stream) {
                break;
            }
            let waiting = &self.pending[self.written..];
            let chunk = &waiting[..waiting.len().min(WRITE_BYTES)];
            let chunk = match chunk.iter().rposition(|&byte| byte == b'\n') {
                Some(end) => &chunk[..=end],
                None => chunk,
            };
            match rustix::io::write(self.stream, chunk) {
                Ok(length) => {
                    self.mid_line = length > 0 && chunk[length - 1] != b'\n';
                    self.written += length;
                }
                Err(Errno::INTR | Errno::AGAIN) => break,
                Err(errno) => {
                    self.closed = true;
                    // A terminal that is gone says EIO.
                    let gone = matches!(errno, Errno::PIPE | Errno::IO);
                    return if gone { Written::Closed } else { Written::Failed(errno) };
                }
            }
        }
        if self.closed || self.written == self.pending.len() {
            self.pending.clear();
            self.written = 0;
        } else if self.written > MAX_PENDING_BYTES {
            self.pending.drain(..self.written);
            self.written = 0;
        }
        Written::Fine
    }
}

fn is_writable(stream: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&stream, PollFlags::OUT)];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    // Errors and hang-ups count: the write then says what is wrong.
    matches!(poll(&mut polled, Some(&none)), Ok(ready) if ready > 0)
}

/// Whether two streams go to the same place, so that a line of one can land within a line of the other.
pub(super) fn same_file(one: BorrowedFd<'_>, two: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(two)) {
        (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = Lines::new("[2] ".into());
        let mut all = Vec::new();
        for piece in pieces {
            lines.push(piece, &mut all);
        }
        lines.finish(&mut all);
        all
    }

    #[test]
    fn every_line_gets_its_prefix_however_it_is_cut() {
        let text = b"one\n\n three\r\nlast";
        let expected = b"[2] one\n[2] \n[2]  three\r\n[2] last\n";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                assert_eq!(lines(&[&text[..first], &text[first..second], &text[second..]]), expected);
            }
        }
        assert_eq!(lines(&[]), b"");
        assert_eq!(lines(&[b"\n"]), b"[2] \n");
    }

    #[test]
    fn long_lines_are_broken_and_nothing_is_lost() {
        for length in [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 3 * MAX_LINE_BYTES] {
            let text = vec![b'x'; length];
            let expected: Vec<u8> =
                text.chunks(MAX_LINE_BYTES).flat_map(|line| [b"[2] ", line, b"\n"].concat()).collect();
            assert_eq!(lines(&[&text]), expected, "{length}");
            assert_eq!(lines(&[&text, b"\n"]), expected, "{length} with its end");
        }
    }

    #[test]
    fn an_endless_line_is_held_no_longer_than_the_limit() {
        let mut lines = Lines::new("[0] ".into());
        let mut all = Vec::new();
        for _ in 0..1000 {
            lines.push(&[b'x'; 1000], &mut all);
            assert!(lines.partial.len() <= MAX_LINE_BYTES);
            all.clear();
        }
    }

    #[test]
    fn a_long_line_is_not_broken_within_a_character() {
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "\u{1f600}".repeat(MAX_LINE_BYTES / 4 + 1));
            let broken = String::from_utf8(lines(&[text.as_bytes()])).expect("characters stay whole");
            assert_eq!(broken.replace("[2] ", "").replace('\n', ""), text);
        }
        let no_text = vec![0x80; MAX_LINE_BYTES + 1];
        assert_eq!(lines(&[&no_text]).len(), no_text.len() + 2 * "[2] \n".len());
    }
}
