//! Writers of the arguments of a command: numbers, texts, and texts of several parts.

use std::io::Write as _;

use redis::{Cmd, RedisWrite as _};

pub(super) fn write_number(out: &mut Cmd, n: u64) {
    out.write_arg(itoa::Buffer::new().format(n).as_bytes());
}

pub(super) fn write_texts<const N: usize>(out: &mut Cmd, texts: [&str; N]) {
    texts.iter().for_each(|text| out.write_arg(text.as_bytes()));
}

/// Writes one argument, the concatenation of `parts`.
pub(super) fn write_concatenated(out: &mut Cmd, parts: &[&str]) {
    let mut arg = out.writer_for_next_arg();
    for part in parts {
        // Writing into memory can't fail.
        let _ = arg.write_all(part.as_bytes());
    }
}

/// Writes one argument: a verb and numbers, separated by spaces.
pub(super) fn write_verb_and_numbers<const N: usize>(out: &mut Cmd, verb: &str, numbers: [u64; N]) {
    let mut arg = out.writer_for_next_arg();
    let _ = arg.write_all(verb.as_bytes());
    let mut digits = itoa::Buffer::new();
    for number in numbers {
        let _ = arg.write_all(b" ");
        let _ = arg.write_all(digits.format(number).as_bytes());
    }
}
