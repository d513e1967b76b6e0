//! Registers that are written under a lock: for each lock one that checks fences, and one that does
//! not. They are on a separate server without faults.

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use crate::checker::locks::FencedRegister;

/// A read raises the highest fence too. It excludes all older holders; otherwise a late write could
/// fall between the read and the write of the next holder.
const READ_SCRIPT: &str = r"
local fence = tonumber(ARGV[1])
if fence < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return {-1, -1} end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return {tonumber(redis.call('HGET', KEYS[1], 'value') or '0'), tonumber(redis.call('GET', KEYS[2]) or '0')}
";

/// The unfenced register accepts every write. Returns true if the fenced one accepted it.
const WRITE_SCRIPT: &str = r"
redis.call('SET', KEYS[2], ARGV[3])
redis.call('INCR', KEYS[4])
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
return 1
";

/// Values of both registers as read by a holder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegisterValues {
    pub(crate) fenced: i64,
    pub(crate) unfenced: i64,
}

impl RegisterValues {
    /// Returns the values that a holder writes after this read.
    pub(crate) fn incremented(self) -> Self {
        Self { fenced: self.fenced + 1, unfenced: self.unfenced + 1 }
    }
}

/// Final state of a lock's registers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RegisterOutcome {
    pub(crate) fenced: FencedRegister,
    /// Number of writes to the unfenced register, and its value.
    pub(crate) unfenced: (u64, u64),
}

#[derive(Clone)]
pub(crate) struct RegisterClient(MultiplexedConnection);

impl RegisterClient {
    /// Connects; the namespace of the URL is ignored.
    pub(crate) async fn connect(url: &str) -> redis::RedisResult<Self> {
        // No timeout: the process may be paused during a call.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_connection_timeout(None);
        let client = redis::Client::open(url.split('?').next().unwrap_or_default())?;
        Ok(Self(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    fn register_keys(lock: &str) -> [String; 4] {
        ["fenced", "plain", "log", "count"].map(|kind| format!("{kind}:{lock}"))
    }

    /// Returns `None` if a later holder has used the register.
    pub(crate) async fn read(
        &self,
        lock: &str,
        fence: u64,
    ) -> redis::RedisResult<Option<RegisterValues>> {
        let mut call = redis::cmd("EVAL");
        call.arg(READ_SCRIPT).arg(4).arg(&Self::register_keys(lock)[..]).arg(fence);
        let (fenced, unfenced): (i64, i64) = call.query_async(&mut self.0.clone()).await?;
        Ok((fenced >= 0).then_some(RegisterValues { fenced, unfenced }))
    }

    /// Returns true if the fenced register accepted the write.
    pub(crate) async fn write(
        &self,
        lock: &str,
        fence: u64,
        next: RegisterValues,
    ) -> redis::RedisResult<bool> {
        let mut call = redis::cmd("EVAL");
        call.arg(WRITE_SCRIPT).arg(4).arg(&Self::register_keys(lock)[..]);
        call.arg(fence).arg(next.fenced).arg(next.unfenced);
        call.query_async(&mut self.0.clone()).await
    }

    pub(crate) async fn read_outcomes<L: AsRef<str>>(
        &self,
        locks: impl IntoIterator<Item = L>,
    ) -> Vec<RegisterOutcome> {
        let mut outcomes = Vec::new();
        for lock in locks {
            let outcome = self.read_outcome(lock.as_ref()).await;
            outcomes.push(outcome.expect("the registers are there"));
        }
        outcomes
    }

    async fn read_outcome(&self, lock: &str) -> redis::RedisResult<RegisterOutcome> {
        let [_, unfenced, log, count] = Self::register_keys(lock);
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("LRANGE")
            .arg(log)
            .arg(0)
            .arg(-1)
            .cmd("GET")
            .arg(count)
            .cmd("GET")
            .arg(unfenced);
        let (lines, count, unfenced): (Vec<String>, Option<u64>, Option<u64>) =
            pipeline.query_async(&mut self.0.clone()).await?;
        let write = |line: &String| {
            let (fence, value) = line.split_once(' ')?;
            Some((fence.parse().ok()?, value.parse().ok()?))
        };
        Ok(RegisterOutcome {
            fenced: FencedRegister {
                lock: lock.to_owned(),
                writes: lines.iter().filter_map(write).collect(),
            },
            unfenced: (count.unwrap_or(0), unfenced.unwrap_or(0)),
        })
    }
}
