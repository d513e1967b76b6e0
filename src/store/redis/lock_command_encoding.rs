//! Commands of `LOCK_BATCH`, and their encoding.

use std::time::Duration;

use redis::{Cmd, RedisWrite as _};

use super::{
    command_arg_writers::{write_concatenated, write_number, write_verb_and_numbers},
    script_sources::LOCK_BATCH,
};
use crate::{
    durations::ceil_millis,
    key::Key,
    store::{
        backend::{AcquireCommand, LockMode, LockToken},
        key_names::KeyNames,
    },
};

/// Approximate number of bytes of one command.
const BYTES_PER_COMMAND: usize = 190;

/// Approximate number of arguments of one command.
const ARGS_PER_COMMAND: usize = 4;

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
            Self::RefreshGrant { token, .. } => {
                out.write_arg(b"sx");
                write_holder(token, LockMode::Exclusive, out);
            }
            Self::Release { token, mode, .. } => write_release(token, *mode, 0, out),
            Self::ReleaseAndReacquire { token, mode, next } => {
                let can_reserve = *mode == LockMode::Exclusive && next.record_name.is_none();
                let next_seq = if can_reserve { next.resume_seq } else { 0 };
                write_release(token, *mode, next_seq, out);
                write_acquire(next, out);
            }
            Self::Downgrade { token, lease, .. } => {
                out.write_arg(b"dx");
                write_holder(token, LockMode::Exclusive, out);
                write_number(out, ceil_millis(*lease));
            }
        }
    }
}

fn write_acquire(call: &AcquireCommand, out: &mut Cmd) {
    let AcquireCommand { token, mode, lease, max_wait, resume_seq, record_name, .. } = call;
    let verb = match (record_name, mode) {
        (None, LockMode::Exclusive) => "ax",
        (None, LockMode::Shared) => "as",
        (None, LockMode::Permits(_)) => "ap",
        (Some(_), LockMode::Exclusive) => "kx",
        (Some(_), LockMode::Shared) => "ks",
        (Some(_), LockMode::Permits(_)) => "kp",
    };
    let max_wait_ms = max_wait.map_or(0, ceil_millis);
    write_verb_and_numbers(out, verb, [mode.max_permits(), max_wait_ms, *resume_seq]);
    write_holder(token, *mode, out);
    write_number(out, ceil_millis(*lease));
}

/// Writes a release. `next_seq` is the sequence of the acquire that follows in the same call, or 0.
/// If that acquire precedes all waiters, the script leaves the freed lock to it.
fn write_release(token: &LockToken, mode: LockMode, next_seq: u64, out: &mut Cmd) {
    match next_seq {
        0 => write_concatenated(out, &["r", mode.wire_letter()]),
        _ => write_concatenated(
            out,
            &["r", mode.wire_letter(), " ", itoa::Buffer::new().format(next_seq)],
        ),
    }
    write_holder(token, mode, out);
}

/// Writes the member of a holder in the lock's sorted set.
fn write_holder(token: &LockToken, mode: LockMode, out: &mut Cmd) {
    write_concatenated(out, &["h", mode.member_tag(), token.as_str()]);
}

/// Builds one call of all these commands, in this order.
///
/// On a single server a call may contain commands of any shards. In a cluster each shard has a lane
/// of its own, so all commands are of one shard.
pub(super) fn build_command<'a>(
    keys: &KeyNames,
    commands: impl Iterator<Item = &'a LockCommand> + Clone,
    by_text: bool,
) -> Cmd {
    let (key_count, step_count) =
        commands.clone().fold((0, 0), |(key_count, step_count), command| {
            (key_count + command.key_count(), step_count + command.step_count())
        });
    let script = if by_text { ["EVAL", LOCK_BATCH.source] } else { ["EVALSHA", LOCK_BATCH.sha1()] };
    let mut out = Cmd::with_capacity(
        3 + ARGS_PER_COMMAND * step_count,
        script[1].len() + 64 + BYTES_PER_COMMAND * step_count,
    );
    script.iter().for_each(|text| out.write_arg(text.as_bytes()));
    let guard_key =
        commands.clone().next().and_then(|command| keys.slot_guard_key(command.key().shard()));
    write_number(&mut out, (key_count + guard_key.iter().len()) as u64);
    commands.clone().for_each(|command| command.write_keys(keys, &mut out));
    guard_key.iter().for_each(|parts| write_concatenated(&mut out, parts));
    commands.for_each(|command| command.write_args(&mut out));
    out
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
        let (released_key, acquired_key) = (Key::path_param("id", "7"), Key::path_param("id", "8"));
        let token = LockToken::new(&NodeId::new());
        let acquire = AcquireCommand {
            key: acquired_key.clone(),
            token: token.clone(),
            mode: LockMode::Permits(3),
            lease: Duration::from_secs(10),
            max_wait: Some(Duration::from_millis(20)),
            resume_seq: 5,
            record_name: Some("r".into()),
        };
        let release = LockCommand::Release {
            key: released_key.clone(),
            token: token.clone(),
            mode: LockMode::Shared,
        };
        let reacquire = LockCommand::ReleaseAndReacquire {
            token: token.clone(),
            mode: LockMode::Exclusive,
            next: acquire,
        };
        let args = command_args(&build_command(&keys, [&release, &reacquire].into_iter(), false));
        let [released_holders, acquired_holders] =
            [&released_key, &acquired_key].map(|key| keys.holders(key));
        let declared = [
            released_holders,
            acquired_holders.clone(),
            acquired_holders,
            keys.idempotency_record(&acquired_key, "r"),
        ];
        assert_eq!(args[..3], ["EVALSHA", LOCK_BATCH.sha1(), "4"]);
        assert_eq!(args[3..7], declared);
        let token = token.as_str();
        let steps = ["rs".into(), format!("hs{token}"), "rx".into(), format!("h{token}")];
        assert_eq!(args[7..11], steps);
        assert_eq!(args[11..], ["kp 3 20 5".into(), format!("hp{token}"), "10000".into()]);
    }

    #[test]
    fn cluster_command_declares_slot_guard_key() {
        let keys = KeyNames::new("shop").clustered();
        let (key, token) = (Key::path_param("id", "7"), LockToken::new(&NodeId::new()));
        let guard_key = keys.slot_guard_key(key.shard()).unwrap().concat();
        let release = LockCommand::Release { key, token, mode: LockMode::Exclusive };
        let args = command_args(&build_command(&keys, [&release].into_iter(), false));
        assert_eq!((args[2].as_str(), &args[4], args[5].as_str()), ("2", &guard_key, "rx"));
    }
}
