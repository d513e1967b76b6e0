//! A step of `calls.lua`, and how it is written on the wire.

use std::{io::Write as _, time::Duration};

use redis::{Cmd, RedisWrite as _};

use super::script::CALLS;
use crate::{
    clock::millis,
    key::Key,
    store::{
        backend::{ACCEPT_WINDOW, Acquire, Mode, Token},
        keys::Keys,
    },
};

/// Bytes and arguments that a step takes, about.
const SIZE: (usize, usize) = (480, 16);

/// What is asked of a lock.
#[derive(Debug)]
pub(super) enum Ask {
    Acquire(Acquire),
    Release {
        key: Key,
        me: Token,
        mode: Mode,
    },
    /// Two steps.
    Pass {
        me: Token,
        mode: Mode,
        next: Acquire,
    },
    Downgrade {
        key: Key,
        me: Token,
        lease: Duration,
    },
}

impl Ask {
    pub(super) fn steps(&self) -> usize {
        if matches!(self, Self::Pass { .. }) { 2 } else { 1 }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Acquire(call) | Self::Pass { next: call, .. } => &call.key,
            Self::Release { key, .. } | Self::Downgrade { key, .. } => key,
        }
    }

    fn record(&self) -> Option<&str> {
        match self {
            Self::Acquire(call) | Self::Pass { next: call, .. } => call.record.as_deref(),
            Self::Release { .. } | Self::Downgrade { .. } => None,
        }
    }

    fn keys(&self) -> usize {
        7 * self.steps() + usize::from(self.record().is_some())
    }

    fn write_keys(&self, keys: &Keys, out: &mut Cmd) {
        let key = self.key();
        for _ in 0..self.steps() {
            keys.line_in_parts(key).iter().for_each(|parts| joined(out, parts));
        }
        if let Some(record) = self.record() {
            out.write_arg(keys.record(key, record).as_bytes());
        }
    }

    fn write_args(&self, out: &mut Cmd) {
        match self {
            Self::Acquire(call) => acquire(call, out),
            Self::Release { key, me, mode } => release(key, me, *mode, out),
            Self::Pass { me, mode, next } => {
                release(&next.key, me, *mode, out);
                acquire(next, out);
            }
            Self::Downgrade { key, me, lease } => {
                texts(out, ["downgrade", key.as_str(), me.as_str(), "x"]);
                number(out, millis(*lease));
            }
        }
    }
}

fn acquire(call: &Acquire, out: &mut Cmd) {
    let Acquire { key, me, mode, lease, spare, wait, old_seq, record } = call;
    let verb = if record.is_some() { "known" } else { "acquire" };
    texts(out, [verb, key.as_str(), me.as_str(), mode.letter()]);
    for n in [mode.limit(), millis(*lease), *spare, wait.map_or(0, millis), *old_seq] {
        number(out, n);
    }
}

fn release(key: &Key, me: &Token, mode: Mode, out: &mut Cmd) {
    texts(out, ["release", key.as_str(), me.as_str(), mode.letter()]);
}

/// The call of all these steps, in this order.
///
/// One server takes steps of any shards in one call. A cluster will not: there each slot needs a call of
/// its own, and the lane a queue for each.
pub(super) fn command<'a>(
    keys: &Keys,
    asks: impl Iterator<Item = &'a Ask> + Clone,
    by_text: bool,
) -> Cmd {
    let (count, steps) =
        asks.clone().fold((0, 0), |(count, steps), ask| (count + ask.keys(), steps + ask.steps()));
    let script = if by_text { ["EVAL", CALLS.code] } else { ["EVALSHA", CALLS.sha()] };
    let mut out = Cmd::with_capacity(6 + SIZE.1 * steps, script[1].len() + 64 + SIZE.0 * steps);
    texts(&mut out, script);
    number(&mut out, count as u64);
    asks.clone().for_each(|ask| ask.write_keys(keys, &mut out));
    // The lock's name: each step has its own.
    texts(&mut out, ["", keys.channels()]);
    number(&mut out, millis(ACCEPT_WINDOW));
    asks.for_each(|ask| ask.write_args(&mut out));
    out
}

pub(super) fn texts<const N: usize>(out: &mut Cmd, texts: [&str; N]) {
    texts.iter().for_each(|text| out.write_arg(text.as_bytes()));
}

pub(super) fn joined(out: &mut Cmd, parts: &[&str]) {
    let mut arg = out.writer_for_next_arg();
    for part in parts {
        // Into memory: it can't fail.
        let _ = arg.write_all(part.as_bytes());
    }
}

pub(super) fn number(out: &mut Cmd, mut n: u64) {
    // Twenty digits are the longest u64.
    let (mut digits, mut at) = ([b'0'; 20], 19);
    while n > 9 {
        digits[at] = b'0' + u8::try_from(n % 10).unwrap_or(0);
        (n, at) = (n / 10, at - 1);
    }
    digits[at] = b'0' + u8::try_from(n).unwrap_or(0);
    out.write_arg(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::backend::Node;

    fn args(command: &Cmd) -> Vec<String> {
        let text = |arg: redis::Arg<&[u8]>| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn numbers_are_written_with_all_their_digits() {
        let numbers = [0, 9, 10, 300, u64::MAX];
        let mut out = Cmd::new();
        numbers.iter().for_each(|n| number(&mut out, *n));
        assert_eq!(args(&out), numbers.map(|n| n.to_string()));
    }

    #[test]
    fn a_call_declares_the_keys_of_its_steps_in_their_order() {
        let keys = Keys::new("shop");
        let (one, two) = (Key::path_param("id", "7"), Key::path_param("id", "8"));
        let me = Token::new(&Node::new());
        let known = Acquire {
            key: two.clone(),
            me: me.clone(),
            mode: Mode::Permits(3),
            lease: Duration::from_secs(10),
            spare: 16,
            wait: Some(Duration::from_millis(20)),
            old_seq: 5,
            record: Some("r".into()),
        };
        let release = Ask::Release { key: one.clone(), me: me.clone(), mode: Mode::Shared };
        let pass = Ask::Pass { me: me.clone(), mode: Mode::Exclusive, next: known };
        let args = args(&command(&keys, [&release, &pass].into_iter(), false));
        let declared =
            [keys.line(&one), keys.line(&two), keys.line(&two), vec![keys.record(&two, "r")]];
        assert_eq!(args[..3], ["EVALSHA", CALLS.sha(), "22"]);
        assert_eq!(args[3..25], declared.concat());
        assert_eq!(args[25..28], ["", "lg:1:shop:", "300"]);
        let me = me.as_str();
        let steps = [
            vec!["release", one.as_str(), me, "s", "release", two.as_str(), me, "x"],
            vec!["known", two.as_str(), me, "p", "3", "10000", "16", "20", "5"],
        ];
        assert_eq!(args[28..], steps.concat());
    }
}
