//! `lockgate check` as operators run it: its output and its exit codes.

#[path = "check/tls.rs"]
mod tls;

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use lockgate_tests::{RedisServer, connect_with_long_timeout};

/// Reached only by an event that never happens.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the program and returns its exit code and its output.
fn run_check(args: &[&str]) -> (Option<i32>, String) {
    run_check_with_store_variable(None, args)
}

/// A repair takes a reason.
const REPAIR: [&str; 3] = ["--repair", "--reason", "a test"];

fn run_repair(url: &str, args: &[&str]) -> (Option<i32>, String) {
    run_check(&[&[url], &REPAIR[..], args].concat())
}

/// Like `run_check`, with a value for `LOCKGATE_STORE`.
fn run_check_with_store_variable(store: Option<&str>, args: &[&str]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    program.env_remove("LOCKGATE_STORE").envs(store.map(|url| ("LOCKGATE_STORE", url)));
    run_program(program, args)
}

fn run_program(mut program: Command, args: &[&str]) -> (Option<i32>, String) {
    let args = to_command_line(args);
    program.stdin(Stdio::null());
    let Output { status, stdout, stderr } = program.args(args).output().expect("it is built");
    let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (status.code(), text)
}

/// Returns the arguments of the command `check`, with each URL as the option `--store`.
fn to_command_line<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let is_url = |arg: &str| arg.contains("://") && !arg.starts_with('-');
    let options = args.iter().flat_map(|arg| {
        let option = is_url(arg).then_some("--store");
        option.into_iter().chain([*arg])
    });
    ["check"].into_iter().chain(options).collect()
}

/// Runs the program with a closed output, as before `| head -1`, and returns its exit code.
fn run_check_with_closed_output(args: &[&str]) -> Option<i32> {
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let mut program = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    program
        .env_remove("LOCKGATE_STORE")
        .args(to_command_line(args))
        .stdout(closed())
        .stderr(closed());
    program.status().expect("it is built").code()
}

async fn send_command(server: &RedisServer, args: &[&str]) {
    query(server, args).await;
}

async fn query(server: &RedisServer, args: &[&str]) -> redis::Value {
    let client =
        redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).expect("an address");
    // A loaded machine is no outage: the default timeout of a reply is half a second.
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TEST_TIMEOUT))
        .set_response_timeout(Some(TEST_TIMEOUT));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let mut connection = connection.await.expect("it runs");
    let mut command = redis::cmd(args[0]);
    command.arg(&args[1..]);
    command.query_async(&mut connection).await.expect("the command is right")
}

#[tokio::test]
async fn exit_code_reports_faults_repairs_and_empty_namespace() {
    let server = RedisServer::start().await;
    let url = |namespace: &str| server.url(namespace);
    let store = connect_with_long_timeout(&url("shop")).await;
    let held = store.lock("x").acquire().await.expect("it is free");
    let (code, text) = run_check(&[&url("shop")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("0 faults"), "{text}");
    assert_eq!(run_check_with_closed_output(&[&url("shop")]), Some(0));
    held.release().await;

    // Other users can list the arguments of a process, but not its variables.
    let (code, text) = run_check_with_store_variable(Some(&url("shop")), &REPAIR);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run_check_with_store_variable(Some(&url("shop")), &[&url("shpo")]);
    assert_eq!(code, Some(3), "the argument takes precedence: {text}");

    // An unused namespace is no success, and a check does not create it.
    for _ in 0..2 {
        let (code, text) = run_check(&[&url("shpo")]);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("the namespace is empty"), "{text}");
        assert!(text.contains("0 dead jobs, 0 dead letters of queues"), "{text}");
        assert_eq!(run_check_with_closed_output(&[&url("shpo")]), Some(3));
        assert_eq!(run_repair(&url("shpo"), &["--yes"]).0, Some(3));
    }
    assert_eq!(query(&server, &["KEYS", "lg:1:shpo:*"]).await, redis::Value::Array(Vec::new()));
    let (_, text) = run_check(&["redis://127.0.0.1:1/?ns=shop"]);
    assert_eq!(text.matches("127.0.0.1:1: ").count(), 1, "address and cause, once: {text}");

    // An unknown key is not repaired. A key of a shard's numbers that expires is repaired.
    send_command(&server, &["SET", "lg:1:shop:{3}:odd", "1"]).await;
    let (code, text) = run_check(&[&url("shop")]);
    assert_eq!((code, run_check_with_closed_output(&[&url("shop")])), (Some(1), Some(1)), "{text}");
    let (code, text) = run_repair(&url("shop"), &["--yes"]);
    assert_eq!(code, Some(1), "an unknown key is left to the operator: {text}");
    send_command(&server, &["DEL", "lg:1:shop:{3}:odd"]).await;
    send_command(&server, &["SET", "lg:1:shop:{3}:replicas", "1"]).await;
    let (code, text) = run_check(&[&url("shop")]);
    assert_eq!(code, Some(1), "{text}");
    let (code, text) = run_repair(&url("shop"), &[]);
    assert_eq!(code, Some(4), "nobody has confirmed: {text}");
    let (code, text) = run_repair(&url("shop"), &["--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(run_check(&[&url("shop")]).0, Some(0));
    // What was repaired is recorded: not what was clean, empty, or not confirmed.
    let audit = store.audit(Default::default(), 10).await.expect("the store answers");
    let actions = audit.records.iter().map(|record| (&*record.action, &*record.reason));
    assert_eq!(actions.collect::<Vec<_>>(), [("repair-store", "a test"); 2]);
}

#[test]
fn invalid_arguments_or_unreachable_store_exit_with_2() {
    for args in [
        &[][..],
        &["--repair", "redis://127.0.0.1/"],
        &["--mend", "redis://127.0.0.1/"],
        &["redis://127.0.0.1/?name=shop"],
    ] {
        assert_eq!(
            (run_check(args).0, run_check_with_closed_output(args)),
            (Some(2), Some(2)),
            "{args:?}"
        );
    }
    for args in [&["redis://a/", "redis://:secret@b/"][..], &["--repair=redis://:secret@b/"]] {
        let (code, text) = run_check(args);
        assert_eq!(code, Some(2), "{text}");
        assert!(!text.contains("secret"), "the error shows a password: {text}");
    }
    // No server listens there.
    let (code, text) = run_check(&["redis://127.0.0.1:1/?ns=shop"]);
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn help_option_prints_usage_and_exits_with_0() {
    let program = || Command::new(env!("CARGO_BIN_EXE_lockgate"));
    for args in [&["-h"][..], &["--help"], &["redis://127.0.0.1/", "--repair", "--help"]] {
        let args = to_command_line(args);
        let Output { status, stdout, stderr } =
            program().args(&args).output().expect("it is built");
        assert_eq!((status.code(), stderr), (Some(0), Vec::new()), "{args:?}");
        let text = String::from_utf8_lossy(&stdout);
        assert!(text.contains("Usage: lockgate check ") && text.contains("Exit codes:"), "{text}");
    }
    assert_eq!(run_check_with_closed_output(&["--help"]), Some(0));
}
