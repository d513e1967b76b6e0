//! The `redis-server` of a run, and its counters.

use std::{
    collections::BTreeMap, env, io, net::TcpListener, process::Command, thread, time::Duration,
};

use redis::{Client, Cmd, Connection, FromRedisValue, Pipeline};

use crate::{
    bench_process::BenchProcess, bench_result::BenchResult, clock, stats::nanos_to_millis,
};

/// Shell script that kills the server when its stdin closes, which the end of this process causes.
/// It ignores Ctrl-C, which the terminal sends to all processes of the group; the server runs in
/// the background and ignores it too.
const SERVER_SHELL_SCRIPT: &str = r#"
trap "" INT TERM HUP
redis-server "$@" >/dev/null 2>&1 &
echo $!
cat >/dev/null
kill -KILL $! 2>/dev/null
wait
"#;

/// Limit of the start and of each answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct RedisServer {
    port: u16,
    connection: Connection,
    shell: BenchProcess,
}

/// Counters of the server since its start. Commands of clients and of scripts are counted alike. A
/// subcommand counts as its command. `RUNNER_COMMANDS` are left out.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerCounters {
    pub(crate) calls: BTreeMap<String, u64>,
    /// Microseconds per command. The time of a script includes the commands that it calls.
    pub(crate) micros: BTreeMap<String, u64>,
    /// CPU time of the main thread, which runs the commands.
    pub(crate) cpu_seconds: f64,
    read_at: u64,
}

impl ServerCounters {
    /// Returns the share of a core that was used since `before`.
    pub(crate) fn core_share_since(&self, before: &Self) -> f64 {
        (self.cpu_seconds - before.cpu_seconds)
            / (nanos_to_millis(self.read_at - before.read_at) / 1e3)
    }
}

impl RedisServer {
    /// Starts a server without persistence on a free port. Tries again on another port if the first
    /// one was taken meanwhile.
    pub(crate) fn start() -> BenchResult<Self> {
        Self::try_start().or_else(|_| Self::try_start())
    }

    fn try_start() -> BenchResult<Self> {
        let port = find_free_port()?;
        let mut command = Command::new("sh");
        command.args(["-c", SERVER_SHELL_SCRIPT, "redis-server", "--port", &port.to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(env::temp_dir());
        let mut shell = BenchProcess::spawn(command)?;
        let pid = shell.read_line()?;
        let connection = connect_to_process(port, &pid)?;
        Ok(Self { port, connection, shell })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Deletes all data.
    pub(crate) fn flush(&mut self) -> BenchResult<()> {
        Ok(redis::cmd("FLUSHALL").query(&mut self.connection)?)
    }

    pub(crate) fn version(&mut self) -> BenchResult<String> {
        Ok(self.read_info("server")?.remove("redis_version").unwrap_or_default())
    }

    pub(crate) fn read_counters(&mut self) -> BenchResult<ServerCounters> {
        let mut counters = ServerCounters::default();
        for (name, fields) in self.read_info("commandstats")? {
            let name = name.trim_start_matches("cmdstat_");
            let name = name.split('|').next().unwrap_or_default().to_lowercase();
            if !RUNNER_COMMANDS.contains(&name.as_str()) {
                *counters.calls.entry(name.clone()).or_default() +=
                    parse_counter(&fields, "calls=");
                *counters.micros.entry(name).or_default() += parse_counter(&fields, "usec=");
            }
        }
        let cpu = self.read_info("cpu")?;
        let seconds = |name: &str| cpu.get(name).and_then(|text| text.parse::<f64>().ok());
        let cpu_times = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"].map(seconds);
        counters.cpu_seconds = cpu_times.into_iter().flatten().sum();
        counters.read_at = clock::now();
        Ok(counters)
    }

    pub(crate) fn used_memory(&mut self) -> BenchResult<u64> {
        let memory = self.read_info("memory")?;
        Ok(memory.get("used_memory").ok_or("no used_memory")?.parse()?)
    }

    /// Returns the sum of all string keys that are integers: the charges of plain quota counters.
    pub(crate) fn sum_numeric_keys(&mut self) -> BenchResult<u64> {
        let (mut cursor, mut sum) = (0_u64, 0);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("COUNT").arg(5_000).arg("TYPE").arg("string");
            let (next, keys): (u64, Vec<String>) = scan.query(&mut self.connection)?;
            if !keys.is_empty() {
                let values: Vec<Option<String>> =
                    redis::cmd("MGET").arg(keys).query(&mut self.connection)?;
                let numbers = values.iter().flatten().filter_map(|value| value.parse::<u64>().ok());
                sum += numbers.sum::<u64>();
            }
            cursor = next;
            if cursor == 0 {
                return Ok(sum);
            }
        }
    }

    /// Runs a command that is not part of a measurement.
    pub(crate) fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> BenchResult<T> {
        Ok(command.query(&mut self.connection)?)
    }

    /// Like [`query`](Self::query), for a pipeline.
    pub(crate) fn query_pipeline<T: FromRedisValue>(
        &mut self,
        commands: &Pipeline,
    ) -> BenchResult<Vec<T>> {
        Ok(commands.query(&mut self.connection)?)
    }

    fn read_info(&mut self, section: &str) -> BenchResult<BTreeMap<String, String>> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.connection)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Closing stdin lets the shell kill the server. Killing the shell would leave the server
        // running.
        self.shell.close();
    }
}

/// Commands that the runner itself sends.
pub(crate) const RUNNER_COMMANDS: [&str; 3] = ["flushall", "info", "monitor"];

/// Parses the number after `prefix` in `calls=5,usec=...`.
fn parse_counter(fields: &str, prefix: &str) -> u64 {
    let number = fields.split(',').find_map(|part| part.strip_prefix(prefix));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn find_free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Connects to the server with this process id, because another process may have taken the port.
fn connect_to_process(port: u16, pid: &str) -> BenchResult<Connection> {
    let deadline = clock::now() + clock::duration_nanos(SERVER_TIMEOUT);
    let client = Client::open(("127.0.0.1", port))?;
    loop {
        if let Ok(mut connection) = client.get_connection_with_timeout(SERVER_TIMEOUT) {
            connection.set_read_timeout(Some(SERVER_TIMEOUT))?;
            let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
            if info.lines().any(|line| line == format!("process_id:{pid}")) {
                return Ok(connection);
            }
        }
        if clock::now() > deadline {
            return Err("redis-server did not start; install version 6.2 or newer".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_parsed_from_commandstats() {
        let fields = "calls=12,usec=30,usec_per_call=2.50";
        assert_eq!((parse_counter(fields, "calls="), parse_counter(fields, "usec=")), (12, 30));
        assert_eq!(parse_counter("usec=30", "calls="), 0);
    }
}
