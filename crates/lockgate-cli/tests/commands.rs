//! The commands of `lockgate` as operators run them, on a real server.

#[path = "commands/jobs.rs"]
mod jobs;
#[path = "commands/queues.rs"]
mod queues;
#[path = "commands/shop.rs"]
mod shop;
#[path = "commands/terminal.rs"]
mod terminal;

use std::time::Duration;

use lockgate::{
    Key, Policy, Quota,
    queue::{Task, TaskFailure},
};

use self::shop::Shop;

/// Reached only by an event that never happens.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn stuck_lock_is_found_and_released() {
    let shop = Shop::start().await;
    let guard = shop.store.lock("order:7").acquire().await.expect("it is free");
    let (code, text, _) = shop.run(&["locks", "show", "order:7"]).await;
    let holder = format!("(pid {})", std::process::id());
    assert!(code == Some(0) && text.contains("order:7 is held by"), "{text}");
    assert!(text.contains(&holder), "{text}");
    let locks = shop.run_json(&["locks", "list"]).await;
    assert_eq!(locks["holds"][0]["lock"], "order:7");
    assert_eq!(locks["holds"][0]["fence"], guard.fence());
    assert_eq!((&locks["waits"], &locks["hold_count"]), (&serde_json::json!([]), &1.into()));
    let second = shop.store.lock("order:8").acquire().await.expect("it is free");
    let list = ["locks", "list", "--limit", "1"];
    let (_, text, _) = shop.run(&list).await;
    assert!(text.ends_with("the 1 longest of 2 holds\n"), "{text}");
    let locks = shop.run_json(&list).await;
    assert_eq!(
        (locks["holds"].as_array().map(Vec::len), &locks["hold_count"]),
        (Some(1), &2.into())
    );
    let _ = second.release().await;
    assert_eq!(shop.run_json(&["workers"]).await[0]["hold_count"], 1);

    let waiter = shop.store.lock("order:7").wait(TEST_TIMEOUT).acquire();
    let (text, shown) = tokio::select! {
        listed = async {
            loop {
                let (_, listed, _) = shop.run(&["locks", "list"]).await;
                if listed.contains("LONGEST WAIT") {
                    return (listed, shop.run(&["locks", "show", "order:7"]).await.1);
                }
            }
        } => listed,
        acquired = waiter => panic!("it is held: {acquired:?}"),
    };
    assert!(text.lines().last().is_some_and(|row| row.starts_with("order:7  1 ")), "{text}");
    // It waits behind a hold of its own process, so it is not in the queue of the store.
    assert!(shown.contains("; 1 process waits with 1 request"), "{shown}");
    assert!(shown.contains("WAITERS  LONGEST WAIT  PROCESS"), "{shown}");

    // There is no terminal for a confirmation.
    let release = ["locks", "release", "order:7", "--reason", "it hangs"];
    let (code, _, error) = shop.run(&release).await;
    assert_eq!(code, Some(4), "{error}");
    assert!(error.contains("--yes"), "{error}");
    assert!(guard.held_lock().loss().is_none());
    let (code, text, _) = shop.run(&[&release[..], &["--yes"]].concat()).await;
    assert_eq!((code, text.as_str()), (Some(0), "order:7 was taken from 1 holder\n"));
    tokio::time::timeout(TEST_TIMEOUT, guard.held_lock().lost()).await.expect("it is told");
    let (code, _, error) = shop.run(&[&release[..], &["--yes"]].concat()).await;
    assert_eq!((code, error.as_str()), (Some(1), "this lock has no holder\n"));

    let audit = shop.run_json(&["audit"]).await;
    let records = audit.as_array().expect("rows");
    let outcomes = records.iter().map(|record| record["outcome"].to_string());
    let failed = r#"{"failed":"this lock has no holder"}"#.to_owned();
    assert_eq!(outcomes.collect::<Vec<_>>(), [failed, r#""done""#.to_owned()]);
    assert_eq!(
        (&records[1]["operator"], &records[1]["reason"]),
        (&"ada".into(), &"it hangs".into())
    );
}

#[tokio::test]
async fn queue_is_listed_and_paused() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    let task = queue.push(&"ada@example.org".to_owned()).await.expect("there is room").into_id();
    let listed = async { while shop.run_json(&["queues", "list"]).await[0]["due"] != 1 {} };
    tokio::time::timeout(TEST_TIMEOUT, listed).await.expect("the queue is registered");
    let tasks = shop.run_json(&["queues", "tasks", "emails"]).await;
    assert_eq!(tasks[0]["id"], task.as_str());
    let (code, text, _) = shop.run(&["queues", "tasks", "emails", "--state", "dead"]).await;
    assert!(code == Some(0) && text.contains("(none)"), "{text}");
    let search = ["queues", "tasks", "emails", "--reason", "status 503"];
    let (code, _, error) = shop.run(&search).await;
    assert!(code == Some(2) && error.contains("--state dead"), "{error}");
    let (code, text, _) = shop.run(&[&search[..], &["--state", "dead"]].concat()).await;
    assert!(code == Some(0) && text.contains("(none)"), "{text}");
    let pause = ["queues", "pause", "emails", "--reason", "deploy", "--yes"];
    assert_eq!(shop.run(&pause).await.0, Some(0));
    assert!(queue.stats().await.expect("the store answers").paused);
    let (code, text, _) = shop.run(&["top"]).await;
    assert!(code == Some(0) && text.contains("emails") && text.contains("paused"), "{text}");
}

#[tokio::test]
async fn running_task_is_cancelled() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    let worker = queue.worker(async |task: Task<String>| {
        task.cancellation().cancelled().await;
        Err::<(), _>(TaskFailure::new("stopped"))
    });
    let worker = tokio::spawn(worker.run(std::future::pending()));
    let task = queue.push(&"ada@example.org".to_owned()).await.expect("there is room").into_id();
    let runs = async { while queue.stats().await.expect("it answers").running == 0 {} };
    tokio::time::timeout(TEST_TIMEOUT, runs).await.expect("it starts");
    let cancel = ["queues", "cancel", "emails", task.as_str(), "--reason", "a test", "--yes"];
    let (code, text, error) = shop.run(&cancel).await;
    assert_eq!((code, text.as_str()), (Some(0), "done\n"), "{error}");
    assert_eq!(queue.stats().await.expect("it answers").cancelled, 1);
    worker.abort();
}

#[tokio::test]
async fn client_is_blocked_and_policy_changed() {
    let shop = Shop::start().await;
    // An address is the subject that `by_ip` counts, here and in the audit log.
    let quota = Quota::requests(1_000_000).per(Duration::from_secs(60));
    let limiter = shop.store.rate_limiter(Policy::new(quota).with_name("api"));
    let client = Key::ip([192, 0, 2, 7].into());
    let options = ["192.0.2.7", "--seconds", "60", "--reason", "abuse", "--yes"];
    let [unknown, block] =
        ["app", "api"].map(|policy| [&["limits", "block", policy][..], &options].concat());
    let (code, _, error) = shop.run(&unknown).await;
    assert!(code == Some(1) && error.contains("no process has a policy app"), "{error}");
    assert!(limiter.check(client.clone(), 1).await.expect("the store answers").is_admitted());
    let (code, _, error) = shop.run(&block).await;
    assert_eq!(code, Some(0), "{error}");
    let blocked = async {
        while limiter.check(client.clone(), 1).await.expect("the store answers").is_admitted() {}
    };
    tokio::time::timeout(TEST_TIMEOUT, blocked).await.expect("the process follows");
    let unblock = ["limits", "unblock", "api", "192.0.2.7", "--reason", "sorry"];
    assert_eq!(shop.run_json(&unblock).await["result"], "done");
    assert_eq!(shop.run_json(&["audit"]).await[0]["target"], "api 192.0.2.7");
    let set = ["limits", "set", "api", "--reason", "load", "--yes", "--quota"];
    assert_eq!(shop.run(&[&set[..], &["5 per 60s"]].concat()).await.0, Some(0));
    let (_, text, _) = shop.run(&["limits", "list"]).await;
    assert!(text.contains("api") && text.contains("5 per 60s, with blocks"), "{text}");
    assert_eq!(shop.run(&[&set[..], &["5 per 0s"]].concat()).await.0, Some(2));
    assert_eq!(shop.run(&set[..set.len() - 1]).await.0, Some(2), "nothing would change");
}

#[tokio::test]
async fn quota_and_mode_change_apart() {
    let shop = Shop::start().await;
    let policy = Policy::new("2 per 1h sliding".parse().expect("a quota"));
    let limiter = shop.store.rate_limiter(policy.with_name("search").shadow());
    let is_admitted =
        async || limiter.check("customer:7", 1).await.expect("the store answers").is_admitted();
    let run_set = async |option: &str, value: &str, change: &str| {
        let set = ["limits", "set", "search", option, value, "--reason", "a trial", "--yes"];
        assert_eq!(shop.run(&set).await.0, Some(0));
        let policies = shop.run_json(&["limits", "list"]).await;
        assert_eq!(policies[0]["change"].to_string(), change);
    };
    // A process reports a policy from its first request on.
    assert!(is_admitted().await);
    // A new quota leaves the mode: what was deployed in shadow mode still refuses nothing.
    let quota = r#""quota":{"counting":"sliding","limit":1,"window_ms":3600000}"#;
    run_set("--quota", "1 per 1h sliding", &format!("{{{quota}}}")).await;
    let list = ["limits", "list"];
    let followed = async { while shop.run_json(&list).await[0]["changed_processes"] != 1 {} };
    tokio::time::timeout(TEST_TIMEOUT, followed).await.expect("the process follows");
    for _ in 0..5 {
        assert!(is_admitted().await, "it is in shadow mode");
    }
    // A new mode leaves the quota.
    run_set("--mode", "enforced", &format!(r#"{{{quota},"shadow":false}}"#)).await;
    let refused = async { while is_admitted().await {} };
    tokio::time::timeout(TEST_TIMEOUT, refused).await.expect("the process follows");
    run_set("--mode", "shadow", &format!(r#"{{{quota},"shadow":true}}"#)).await;
    let admitted = async { while !is_admitted().await {} };
    tokio::time::timeout(TEST_TIMEOUT, admitted).await.expect("the process follows");
}

#[tokio::test]
async fn refused_client_is_found_and_has_its_quota_back() {
    let shop = Shop::start().await;
    let policy = Policy::new("2 per 1h".parse().expect("a quota")).with_name("search");
    let limiter = shop.store.rate_limiter(policy);
    for _ in 0..5 {
        limiter.check("customer:7", 1).await.expect("it answers");
    }
    let top = shop.run_json(&["limits", "top"]).await;
    assert_eq!((&top[0]["policy"], &top[0]["subject"]), (&"search".into(), &"customer:7".into()));
    assert_eq!((&top[0]["refusals"], &top[0]["max_refusals"]), (&3.into(), &3.into()));
    let (_, text, _) = shop.run(&["limits", "list"]).await;
    for part in ["search", "2 per 3600s", "enforced", "given by the code", "1 of 1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let show = ["limits", "show", "search", "customer:7"];
    let (code, text, _) = shop.run(&show).await;
    assert!(code == Some(0) && text.contains("customer:7 has 0 of 2 per 3600s left"), "{text}");
    let reset = ["limits", "reset", "search", "customer:7", "--reason", "asked by support"];
    assert_eq!(shop.run(&reset).await.0, Some(0));
    assert_eq!(shop.run_json(&show).await["quotas"][0]["remaining"], 2);
    let (code, _, error) = shop.run(&["limits", "show", "serach", "customer:7"]).await;
    assert_eq!(code, Some(1), "{error}");
}

#[tokio::test]
async fn unknown_job_and_wrong_arguments_have_their_exit_codes() {
    let shop = Shop::start().await;
    let unknown = "07".repeat(17);
    let (code, _, error) = shop.run(&["jobs", "show", &unknown]).await;
    assert_eq!((code, error.as_str()), (Some(1), "there is no such deferred request\n"));
    assert_eq!(shop.run(&["jobs", "show", "7"]).await.0, Some(2));
    assert_eq!(shop.run(&["jobs", "pause", "--reason", "x", "--yes", "--watch"]).await.0, Some(2));
    let (code, text, _) = shop.run(&["completions", "bash"]).await;
    assert!(code == Some(0) && text.contains("_lockgate"), "{text}");
}

#[tokio::test]
async fn process_is_drained_and_resumed() {
    let shop = Shop::start().await;
    let _guard = shop.store.lock("order:7").acquire().await.expect("it is free");
    let process = shop.run_json(&["workers"]).await[0].clone();
    assert_eq!(process["draining"], false);
    let name = format!("{}:{}", process["host"].as_str().expect("a host"), std::process::id());
    let drain = ["workers", "drain", &name, "--reason", "it is being replaced", "--yes"];
    let (code, text, error) = shop.run(&drain).await;
    assert_eq!((code, text), (Some(0), format!("{name} is drained\n")), "{error}");
    assert_eq!(shop.run_json(&["workers"]).await[0]["draining"], true);
    let node = process["node"].as_str().expect("an id");
    let (code, _, error) = shop.run(&["workers", "resume", node, "--reason", "it is well"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(shop.run_json(&["workers"]).await[0]["draining"], false);
    let (code, _, error) = shop.run(&["workers", "drain", "web:1", "--reason", "x", "--yes"]).await;
    assert!(code == Some(1) && error.starts_with("web:1 does not answer"), "{error}");
}
