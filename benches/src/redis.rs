//! The one `redis-server` of a run, and what it counts.

use std::{
    collections::BTreeMap, env, io, net::TcpListener, process::Command, thread, time::Duration,
};

use redis::{Client, Cmd, Connection, FromRedisValue, Pipeline};

use crate::{clock, outcome::Outcome, process::Process, stats::millis};

/// A small shell ends the server when its own input closes, and so when this process ends, however that
/// happens. It outlives a Ctrl-C, which reaches everybody at once: a server in the background does too.
const KEEPER: &str = r#"
trap "" INT TERM HUP
redis-server "$@" >/dev/null 2>&1 &
echo $!
cat >/dev/null
kill -KILL $! 2>/dev/null
wait
"#;

/// How long the server may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    port: u16,
    control: Connection,
    keeper: Process,
}

/// What the server has run up to a moment. Commands are counted from outside and inside scripts alike;
/// subcommands count as their command, and those of the benchmark itself are left out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) calls: BTreeMap<String, u64>,
    /// Of each command, the time of those inside scripts being also that of the script.
    pub(crate) micros: BTreeMap<String, u64>,
    /// Seconds of a core, of the thread that runs commands.
    pub(crate) cpu: f64,
    at: u64,
}

impl Counts {
    /// Which part of a core has been used since.
    pub(crate) fn core_since(&self, before: &Self) -> f64 {
        (self.cpu - before.cpu) / (millis(self.at - before.at) / 1e3)
    }
}

impl Server {
    /// On a free port, with nothing kept on disk; on another one if somebody else was faster to take it.
    pub(crate) fn start() -> Outcome<Self> {
        Self::try_start().or_else(|_| Self::try_start())
    }

    fn try_start() -> Outcome<Self> {
        let port = free_port()?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "redis-server", "--port", &port.to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(env::temp_dir());
        let mut keeper = Process::spawn(command)?;
        let pid = keeper.line()?;
        let control = connect(port, &pid)?;
        Ok(Self { port, control, keeper })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Empties it: nothing of one run is there in the next.
    pub(crate) fn flush(&mut self) -> Outcome<()> {
        Ok(redis::cmd("FLUSHALL").query(&mut self.control)?)
    }

    /// What it is, for the report's first line.
    pub(crate) fn version(&mut self) -> Outcome<String> {
        Ok(self.info("server")?.remove("redis_version").unwrap_or_default())
    }

    /// What it has run since it was started.
    pub(crate) fn counts(&mut self) -> Outcome<Counts> {
        let mut counts = Counts::default();
        for (name, told) in self.info("commandstats")? {
            let name = name.trim_start_matches("cmdstat_");
            let name = name.split('|').next().unwrap_or_default().to_lowercase();
            if !OURS.contains(&name.as_str()) {
                *counts.calls.entry(name.clone()).or_default() += number(&told, "calls=");
                *counts.micros.entry(name).or_default() += number(&told, "usec=");
            }
        }
        let cpu = self.info("cpu")?;
        let seconds = |name: &str| cpu.get(name).and_then(|text| text.parse::<f64>().ok());
        let used = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"].map(seconds);
        counts.cpu = used.into_iter().flatten().sum();
        counts.at = clock::now();
        Ok(counts)
    }

    pub(crate) fn used_memory(&mut self) -> Outcome<u64> {
        let memory = self.info("memory")?;
        Ok(memory.get("used_memory").ok_or("no used_memory")?.parse()?)
    }

    /// The sum of all keys that are whole numbers: what was charged to plain counters.
    pub(crate) fn charged(&mut self) -> Outcome<u64> {
        let (mut cursor, mut sum) = (0_u64, 0);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("COUNT").arg(5_000).arg("TYPE").arg("string");
            let (next, keys): (u64, Vec<String>) = scan.query(&mut self.control)?;
            if !keys.is_empty() {
                let values: Vec<Option<String>> =
                    redis::cmd("MGET").arg(keys).query(&mut self.control)?;
                let numbers = values.iter().flatten().filter_map(|value| value.parse::<u64>().ok());
                sum += numbers.sum::<u64>();
            }
            cursor = next;
            if cursor == 0 {
                return Ok(sum);
            }
        }
    }

    /// One command, which is not timed.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Outcome<T> {
        Ok(command.query(&mut self.control)?)
    }

    /// The same of many that go together.
    pub(crate) fn ask_all<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Outcome<Vec<T>> {
        Ok(commands.query(&mut self.control)?)
    }

    fn info(&mut self, section: &str) -> Outcome<BTreeMap<String, String>> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.control)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The shell ends the server before itself; to kill the shell would leave the server behind.
        self.keeper.close();
    }
}

/// What the conductor of a run sends.
pub(crate) const OURS: [&str; 3] = ["flushall", "info", "monitor"];

/// What follows this name in `calls=5,usec=...`.
fn number(told: &str, name: &str) -> u64 {
    let number = told.split(',').find_map(|part| part.strip_prefix(name));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Connects to that very process: somebody else may have taken the port first.
fn connect(port: u16, pid: &str) -> Outcome<Connection> {
    let give_up = clock::now() + clock::nanos(PATIENCE);
    let client = Client::open(("127.0.0.1", port))?;
    loop {
        if let Ok(mut connection) = client.get_connection_with_timeout(PATIENCE) {
            connection.set_read_timeout(Some(PATIENCE))?;
            let server: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
            if server.lines().any(|line| line == format!("process_id:{pid}")) {
                return Ok(connection);
            }
        }
        if clock::now() > give_up {
            return Err("redis-server did not start; is it installed, 6.2 or newer?".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_told_of_a_command() {
        let told = "calls=12,usec=30,usec_per_call=2.50";
        assert_eq!((number(told, "calls="), number(told, "usec=")), (12, 30));
        assert_eq!(number("usec=30", "calls="), 0);
    }
}
