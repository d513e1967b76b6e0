//! Registers that are written under a lock: for each lock one that checks fences, and one that does
//! not. They are on a server of their own, which no fault strikes.

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use crate::checker::locks::FencedRegister;

/// The highest fence that has read or written counts. A read with it shuts out all that came before:
/// otherwise a late write could fall between the read and the write of the next holder.
const READ_SCRIPT: &str = r"
local fence = tonumber(ARGV[1])
if fence < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return {-1, -1} end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return {tonumber(redis.call('HGET', KEYS[1], 'value') or '0'), tonumber(redis.call('GET', KEYS[2]) or '0')}
";

/// The unfenced register takes everything. Returns whether the fenced one did.
const WRITE_SCRIPT: &str = r"
redis.call('SET', KEYS[2], ARGV[3])
redis.call('INCR', KEYS[4])
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
return 1
";

/// What a holder has read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegisterValues {
    pub(crate) fenced: i64,
    pub(crate) unfenced: i64,
}

impl RegisterValues {
    /// Written by a holder that has read these.
    pub(crate) fn incremented(self) -> Self {
        Self { fenced: self.fenced + 1, unfenced: self.unfenced + 1 }
    }
}

/// All that became of a lock's registers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RegisterOutcome {
    pub(crate) fenced: FencedRegister,
    /// Writes to the unfenced one, and its value.
    pub(crate) unfenced: (u64, u64),
}

#[derive(Clone)]
pub(crate) struct RegisterClient(MultiplexedConnection);

impl RegisterClient {
    /// The namespace of the URL is ignored.
    pub(crate) async fn connect(url: &str) -> redis::RedisResult<Self> {
        // For a process that was stopped meanwhile no answer is late.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_connection_timeout(None);
        let client = redis::Client::open(url.split('?').next().unwrap_or_default())?;
        Ok(Self(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    fn register_keys(lock: &str) -> [String; 4] {
        ["fenced", "plain", "log", "count"].map(|kind| format!("{kind}:{lock}"))
    }

    /// `None`: a later holder has been here.
    pub(crate) async fn read(
        &self,
        lock: &str,
        fence: u64,
    ) -> redis::RedisResult<Option<RegisterValues>> {
        let mut call = redis::cmd("EVAL");
        call.arg(READ_SCRIPT).arg(4).arg(&Self::register_keys(lock)[..]).arg(fence);
        let (fenced, plain): (i64, i64) = call.query_async(&mut self.0.clone()).await?;
        Ok((fenced >= 0).then_some(RegisterValues { fenced, unfenced: plain }))
    }

    /// Whether the fenced register took it.
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
        let mut all = Vec::new();
        for lock in locks {
            let outcome = self.read_outcome(lock.as_ref()).await;
            all.push(outcome.expect("the registers are there"));
        }
        all
    }

    async fn read_outcome(&self, lock: &str) -> redis::RedisResult<RegisterOutcome> {
        let [_, plain, log, count] = Self::register_keys(lock);
        let mut all = redis::pipe();
        all.cmd("LRANGE").arg(log).arg(0).arg(-1).cmd("GET").arg(count).cmd("GET").arg(plain);
        let (lines, count, plain): (Vec<String>, Option<u64>, Option<u64>) =
            all.query_async(&mut self.0.clone()).await?;
        let write = |line: &String| {
            let (fence, value) = line.split_once(' ')?;
            Some((fence.parse().ok()?, value.parse().ok()?))
        };
        Ok(RegisterOutcome {
            fenced: FencedRegister {
                lock: lock.to_owned(),
                writes: lines.iter().filter_map(write).collect(),
            },
            unfenced: (count.unwrap_or(0), plain.unwrap_or(0)),
        })
    }
}
