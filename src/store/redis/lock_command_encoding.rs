//! Commands of `LOCK_BATCH`, and their encoding.

use std::{io::Write as _, time::Duration};

use redis::{Cmd, RedisWrite as _};

use super::scripts::LOCK_BATCH;
use crate::{
    clock::ceil_millis,
    key::Key,
    store::{
        backend::{AcquireCommand, LockMode, LockToken},
        key_names::KeyNames,
    },
};

/// Approximate bytes and arguments of one command.
const SIZE_HINT: (usize, usize) = (190, 4);

/// Call of the lock script.
#[derive(Debug)]
pub(super) enum LockCommand {
    Acquire(AcquireCommand),
    /// Refreshes the grant of a lock held in exclusive mode.
    RefreshGrant {
        key: Key,
        token: LockToken,
    },
    Release {
        key: Key,
        token: LockToken,
        mode: LockMode,
    },
    /// Counts as two steps of the script.
    ReleaseAndReacquire {
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    },
    Downgrade {
        key: Key,
        token: LockToken,
        lease: Duration,
    },
}

impl LockCommand {
    pub(super) fn step_count(&self) -> usize {
        if matches!(self, Self::ReleaseAndReacquire { .. }) { 2 } else { 1 }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Acquire(call) | Self::ReleaseAndReacquire { next: call, .. } => &call.key,
            Self::RefreshGrant { key, .. }
            | Self::Release { key, .. }
            | Self::Downgrade { key, .. } => key,
        }
    }

    fn record(&self) -> Option<&str> {
        match self {
            Self::Acquire(call) | Self::ReleaseAndReacquire { next: call, .. } => {
                call.record_name.as_deref()
            }
            Self::RefreshGrant { .. } | Self::Release { .. } | Self::Downgrade { .. } => None,
        }
    }

    fn key_count(&self) -> usize {
        self.step_count() + usize::from(self.record().is_some())
    }

    fn write_keys(&self, keys: &KeyNames, out: &mut Cmd) {
        let key = self.key();
        for _ in 0..self.step_count() {
            write_concatenated(out, &keys.holders_parts(key));
        }
        if let Some(record) = self.record() {
            out.write_arg(keys.idempotency_record(key, record).as_bytes());
        }
    }

    fn write_args(&self, out: &mut Cmd) {
        match self {
            Self::Acquire(call) => write_acquire(call, out),
            Self::RefreshGrant { token: me, .. } => {
                out.write_arg(b"sx");
                write_holder(me, LockMode::Exclusive, out);
            }
            Self::Release { token: me, mode, .. } => write_release(me, *mode, 0, out),
            Self::ReleaseAndReacquire { token: me, mode, next } => {
                let leaves = *mode == LockMode::Exclusive && next.record_name.is_none();
                let came = if leaves { next.resume_seq } else { 0 };
                write_release(me, *mode, came, out);
                write_acquire(next, out);
            }
            Self::Downgrade { token: me, lease, .. } => {
                out.write_arg(b"dx");
                write_holder(me, LockMode::Exclusive, out);
                write_number(out, ceil_millis(*lease));
            }
        }
    }
}

fn write_acquire(call: &AcquireCommand, out: &mut Cmd) {
    let AcquireCommand {
        token: me,
        mode,
        lease,
        max_wait: wait,
        resume_seq: old_seq,
        record_name: record,
        ..
    } = call;
    let verb = match (record, mode) {
        (None, LockMode::Exclusive) => "ax",
        (None, LockMode::Shared) => "as",
        (None, LockMode::Permits(_)) => "ap",
        (Some(_), LockMode::Exclusive) => "kx",
        (Some(_), LockMode::Shared) => "ks",
        (Some(_), LockMode::Permits(_)) => "kp",
    };
    let wait = wait.map_or(0, ceil_millis);
    write_verb_and_numbers(out, verb, [mode.max_permits(), wait, *old_seq]);
    write_holder(me, *mode, out);
    write_number(out, ceil_millis(*lease));
}

/// Writes a release. `came` is the sequence of the acquire that follows in the same call, or 0. If
/// that acquire precedes all waiters, the script leaves the freed lock to it.
fn write_release(me: &LockToken, mode: LockMode, came: u64, out: &mut Cmd) {
    match came {
        0 => write_concatenated(out, &["r", mode.wire_letter()]),
        _ => write_concatenated(
            out,
            &["r", mode.wire_letter(), " ", itoa::Buffer::new().format(came)],
        ),
    }
    write_holder(me, mode, out);
}

/// Writes the member of a holder in the lock's sorted set.
fn write_holder(me: &LockToken, mode: LockMode, out: &mut Cmd) {
    write_concatenated(out, &["h", mode.member_tag(), me.as_str()]);
}

pub(super) fn write_number(out: &mut Cmd, n: u64) {
    out.write_arg(itoa::Buffer::new().format(n).as_bytes());
}

/// Builds one call of all these commands, in this order.
///
/// On a single server a call may contain commands of any shards. In a cluster each shard has a lane
/// of its own, so all commands are of one shard.
pub(super) fn build_command<'a>(
    keys: &KeyNames,
    asks: impl Iterator<Item = &'a LockCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let (count, steps) = asks
        .clone()
        .fold((0, 0), |(count, steps), ask| (count + ask.key_count(), steps + ask.step_count()));
    let script = if by_text { ["EVAL", LOCK_BATCH.source] } else { ["EVALSHA", LOCK_BATCH.sha1()] };
    let mut out =
        Cmd::with_capacity(3 + SIZE_HINT.1 * steps, script[1].len() + 64 + SIZE_HINT.0 * steps);
    script.iter().for_each(|text| out.write_arg(text.as_bytes()));
    let never = asks.clone().next().and_then(|ask| keys.slot_guard_key(ask.key().shard()));
    write_number(&mut out, (count + never.iter().len()) as u64);
    asks.clone().for_each(|ask| ask.write_keys(keys, &mut out));
    never.iter().for_each(|parts| write_concatenated(&mut out, parts));
    asks.for_each(|ask| ask.write_args(&mut out));
    out
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::backend::NodeId;

    fn command_args(command: &Cmd) -> Vec<String> {
        let text = |arg: redis::Arg<&[u8]>| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn command_declares_keys_of_its_steps_in_order() {
        let keys = KeyNames::new("shop");
        let (one, two) = (Key::path_param("id", "7"), Key::path_param("id", "8"));
        let me = LockToken::new(&NodeId::new());
        let known = AcquireCommand {
            key: two.clone(),
            token: me.clone(),
            mode: LockMode::Permits(3),
            lease: Duration::from_secs(10),
            max_wait: Some(Duration::from_millis(20)),
            resume_seq: 5,
            record_name: Some("r".into()),
        };
        let release =
            LockCommand::Release { key: one.clone(), token: me.clone(), mode: LockMode::Shared };
        let pass = LockCommand::ReleaseAndReacquire {
            token: me.clone(),
            mode: LockMode::Exclusive,
            next: known,
        };
        let args = command_args(&build_command(&keys, [&release, &pass].into_iter(), false));
        let [one, two] = [&one, &two].map(|key| keys.holders(key));
        let declared =
            [one, two.clone(), two, keys.idempotency_record(&Key::path_param("id", "8"), "r")];
        assert_eq!(args[..3], ["EVALSHA", LOCK_BATCH.sha1(), "4"]);
        assert_eq!(args[3..7], declared);
        let me = me.as_str();
        let steps = ["rs".into(), format!("hs{me}"), "rx".into(), format!("h{me}")];
        assert_eq!(args[7..11], steps);
        assert_eq!(args[11..], ["kp 3 20 5".into(), format!("hp{me}"), "10000".into()]);
    }

    #[test]
    fn cluster_command_declares_slot_guard_key() {
        let keys = KeyNames::new("shop").clustered();
        let (key, me) = (Key::path_param("id", "7"), LockToken::new(&NodeId::new()));
        let never = keys.slot_guard_key(key.shard()).unwrap().concat();
        let release = LockCommand::Release { key, token: me, mode: LockMode::Exclusive };
        let args = command_args(&build_command(&keys, [&release].into_iter(), false));
        assert_eq!((args[2].as_str(), &args[4], args[5].as_str()), ("2", &never, "rx"));
    }
}
