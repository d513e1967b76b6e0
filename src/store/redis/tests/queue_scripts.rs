//! Queue scripts called directly: a late copy of a push, and keys of a wrong type.

use super::server_process::ServerProcess;
use crate::store::redis::script_sources::{ScriptSource, TASKS_PUSH, TASKS_SETTLE_AND_POLL};

const QUEUE_KEY: &str = "lg:1:x:{0}:z:q";
const PUSH_NUMBERS_KEY: &str = "lg:1:x:{0}:zp:n";
const RUNNING_KEY: &str = "lg:1:x:{0}:zl:q";
const RECORDS_KEY: &str = "lg:1:x:{0}:zt:q";
const FAILURES_KEY: &str = "lg:1:x:{0}:zm:q";
const COUNTERS_KEY: &str = "lg:1:x:{0}:zf:q";
const LAST_REPLY_KEY: &str = "lg:1:x:{0}:zr:q@w";

/// Ids of the length of task ids.
const TASK_IDS: [&str; 3] =
    ["aaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccc"];

async fn eval_script(
    server: &ServerProcess,
    script: &ScriptSource,
    keys: [&str; 2],
    args: &[&str],
) -> redis::RedisResult<redis::Value> {
    server.try_query(&[&["EVAL", script.source, "2"], &keys[..], args].concat()).await
}

/// Pushes tasks in one call, each under its number. Returns a letter for each. Several tasks take
/// the slow path of the script.
async fn push_tasks(server: &ServerProcess, tasks: &[(&str, u64)]) -> String {
    let caps = format!("{} 1000 1000000", tasks.len());
    let terms: Vec<_> = tasks.iter().map(|(_, n)| format!("{n} {} 0 -", 1 + n % 4096)).collect();
    let mut args = vec![&*caps];
    for ((id, _), terms) in tasks.iter().zip(&terms) {
        args.extend([*id, terms, " 1 3 \nx"]);
    }
    match eval_script(server, &TASKS_PUSH, [QUEUE_KEY, PUSH_NUMBERS_KEY], &args).await {
        Ok(redis::Value::BulkString(letters)) => String::from_utf8(letters).unwrap(),
        other => format!("{other:?}"),
    }
}

async fn read_count(server: &ServerProcess, call: &[&str]) -> u64 {
    server.query(call).await
}

#[tokio::test]
async fn late_copy_of_push_does_not_hide_newer_push() {
    let server = ServerProcess::start().await;
    // A single push takes the fast path of the script, several take the slow one.
    for others in [&[][..], &[(TASK_IDS[2], 9)]] {
        let _: () = server.query(&["FLUSHALL"]).await;
        let old = [&[(TASK_IDS[0], 5)], others].concat();
        let newer = [&[(TASK_IDS[1], 5 + 4096)], others].concat();
        let letters = |letter: &str| letter.to_owned() + &"1".repeat(others.len());
        assert_eq!(push_tasks(&server, &old).await, letters("1"));
        assert_eq!(push_tasks(&server, &newer).await, letters("1"));
        // Both tasks have ended when the copies of their pushes arrive.
        for id in &TASK_IDS[..2] {
            assert_eq!(read_count(&server, &["ZREM", QUEUE_KEY, id]).await, 1);
            assert_eq!(read_count(&server, &["HDEL", RECORDS_KEY, id]).await, 1);
        }
        assert_eq!(push_tasks(&server, &old).await, letters("?"));
        assert_eq!(push_tasks(&server, &newer).await, letters("1"), "the new script is cached");
        let remaining = others.len() as u64;
        assert_eq!(
            read_count(&server, &["ZCARD", QUEUE_KEY]).await,
            remaining,
            "and not stored again"
        );
    }
}

#[tokio::test]
async fn failed_push_is_not_recorded_as_stored() {
    let server = ServerProcess::start().await;
    for tasks in [&[(TASK_IDS[0], 5)][..], &[(TASK_IDS[0], 5), (TASK_IDS[1], 6)]] {
        for corrupt_key in [RECORDS_KEY, QUEUE_KEY, COUNTERS_KEY] {
            let _: () = server.query(&["FLUSHALL"]).await;
            let _: () = server.query(&["SET", corrupt_key, "odd"]).await;
            for _ in 0..2 {
                let outcome = push_tasks(&server, tasks).await;
                assert!(
                    outcome.starts_with('!') || outcome.contains("WRONGTYPE"),
                    "{corrupt_key} {outcome}"
                );
            }
            assert_eq!(read_count(&server, &["DEL", corrupt_key]).await, 1);
            assert_eq!(push_tasks(&server, tasks).await, "1".repeat(tasks.len()), "{corrupt_key}");
            assert_eq!(read_count(&server, &["ZCARD", QUEUE_KEY]).await, tasks.len() as u64);
        }
    }
}

/// One run has ended, and the next is due.
#[tokio::test]
async fn failed_poll_keeps_waiting_task_in_queue() {
    let server = ServerProcess::start().await;
    for corrupt_key in [FAILURES_KEY, COUNTERS_KEY, RECORDS_KEY] {
        let _: () = server.query(&["FLUSHALL"]).await;
        for (id, number) in [(TASK_IDS[0], 1), (TASK_IDS[1], 2)] {
            assert_eq!(push_tasks(&server, &[(id, number)]).await, "1");
        }
        let poll_header = |number: u64| {
            let terms = "2 0 0 10000000 610000 8000000 0 0 0 604800000000 10000 1073741824 3";
            format!("ab:cd.{number} {terms}")
        };
        eval_script(
            &server,
            &TASKS_SETTLE_AND_POLL,
            [QUEUE_KEY, LAST_REPLY_KEY],
            &[&poll_header(1)],
        )
        .await
        .unwrap();
        let run = format!("{}cd.1", TASK_IDS[0]);
        assert_eq!(server.query::<Vec<String>>(&["ZRANGE", RUNNING_KEY, "0", "-1"]).await, [&*run]);
        let _: () = server.query(&["DEL", corrupt_key]).await;
        let _: () = server.query(&["SET", corrupt_key, "odd"]).await;
        let outcome = eval_script(
            &server,
            &TASKS_SETTLE_AND_POLL,
            [QUEUE_KEY, LAST_REPLY_KEY],
            &[&poll_header(2), "d24", &run],
        )
        .await;
        assert!(outcome.is_err(), "{corrupt_key}: {outcome:?}");
        assert_eq!(
            server.query::<Vec<String>>(&["ZRANGE", QUEUE_KEY, "0", "-1"]).await,
            [TASK_IDS[1]],
            "{corrupt_key}"
        );
        if corrupt_key == COUNTERS_KEY {
            assert_eq!(
                server.query::<Vec<String>>(&["ZRANGE", RUNNING_KEY, "0", "-1"]).await,
                [&*run]
            );
        }
    }
}
