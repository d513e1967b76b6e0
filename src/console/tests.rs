//! Tests of the console: who gets in, what an action needs, and that the guard decides everything.

mod looks_and_long_actions;

use std::collections::HashSet;

use super::{BasicAuth, ConsoleReply, ConsoleResource, LocalOperator};
use crate::{
    admin::{AuditCursor, Operator, Permission},
    gate::fake_request::FakeGateRequest,
    rate_limit::Policy,
    reply::Reply,
    store::Store,
};

const HOST: (&str, &str) = ("host", "ops.example:8080");
const JSON: (&str, &str) = ("content-type", "application/json");
const SAME_ORIGIN: (&str, &str) = ("sec-fetch-site", "same-origin");
const PAUSE: &[u8] = br#"{"action":"pause-jobs","reason":"deploy"}"#;

fn console(store: &Store, permission: Permission) -> ConsoleResource<()> {
    let guard = move |_: &()| Some(Operator::new("ada", permission));
    ConsoleResource::new(guard).store(store)
}

fn request(method: &'static str, headers: &[(&'static str, &'static str)]) -> FakeGateRequest {
    let mut request = FakeGateRequest::new(method);
    request.headers = headers.to_vec();
    request
}

async fn respond(
    console: &ConsoleResource<()>,
    mut request: FakeGateRequest,
    path: &str,
    body: &[u8],
) -> Reply {
    match console.parse_request(&mut request, &format!("/ops/{path}"), path) {
        Err(reply) => reply,
        Ok(request) => match request.execute(body).await {
            ConsoleReply::Complete(reply) | ConsoleReply::Events(reply, _) => reply,
        },
    }
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let mut headers = reply.headers.iter();
    headers.find(|(known, _)| known == name).map(|(_, value)| &**value)
}

#[tokio::test]
async fn page_and_files_have_a_strict_policy() {
    let console = console(&Store::memory(), Permission::Look);
    for (path, kind) in [("", "text/html"), ("assets/console.js", "text/javascript")] {
        let reply = respond(&console, request("GET", &[HOST]), path, b"").await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(header(&reply, "content-type").is_some_and(|sent| sent.starts_with(kind)));
        let policy = header(&reply, "content-security-policy").expect("a policy");
        let names = reply.headers.iter().map(|(name, _)| name).collect::<HashSet<_>>();
        assert_eq!(names.len(), reply.headers.len(), "each header once");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert_eq!(header(&reply, "cache-control"), Some("no-store"));
    }
    // Replies of the integrations, and without a store, too.
    let unmounted = ConsoleResource::new(|_: &()| Some(Operator::new("ada", Permission::Look)));
    let replies = [
        (500, respond(&unmounted, request("GET", &[HOST]), "", b"").await),
        (413, ConsoleResource::<()>::unusable_body_reply()),
    ];
    for (status, reply) in replies {
        assert_eq!(reply.status, status);
        assert!(header(&reply, "content-security-policy").is_some(), "{status}");
        assert_eq!(header(&reply, "cache-control"), Some("no-store"), "{status}");
    }
    for path in ["assets/../console.js", "assets/no.js", "api/no", "no"] {
        assert_eq!(
            respond(&console, request("GET", &[HOST]), path, b"").await.status,
            404,
            "{path}"
        );
    }
    assert_eq!(respond(&console, request("POST", &[HOST]), "", b"").await.status, 405);
}

#[test]
fn mount_without_its_slash_is_redirected() {
    let console = console(&Store::memory(), Permission::Look);
    let refused = console.parse_request(&mut request("GET", &[HOST]), "/a/ops?x=1", "");
    let reply = refused.expect_err("a redirection");
    assert_eq!((reply.status, header(&reply, "location")), (308, Some("ops/")));
}

#[tokio::test]
async fn refused_client_gets_nothing() {
    let closed = ConsoleResource::new(|_: &()| None).store(&Store::memory());
    for path in ["", "assets/console.js", "api/session", "api/events", "api/actions", "no"] {
        for method in ["GET", "POST", "DELETE"] {
            let reply = respond(&closed, request(method, &[HOST, SAME_ORIGIN]), path, PAUSE).await;
            assert_eq!(reply.status, 403, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn action_needs_the_page_of_this_origin() {
    let store = Store::memory();
    let console = console(&store, Permission::Act);
    let refused: [&[(&str, &str)]; 5] = [
        &[HOST, JSON],
        &[HOST, JSON, ("sec-fetch-site", "same-site")],
        &[HOST, JSON, ("sec-fetch-site", "none"), ("origin", "http://ops.example:8080")],
        &[HOST, JSON, ("origin", "https://ops.example")],
        &[HOST, JSON, ("origin", "null")],
    ];
    for headers in refused {
        let reply = respond(&console, request("POST", headers), "api/actions", PAUSE).await;
        assert_eq!(reply.status, 403, "{headers:?}");
    }
    let form = [HOST, SAME_ORIGIN, ("content-type", "text/plain")];
    assert_eq!(respond(&console, request("POST", &form), "api/actions", PAUSE).await.status, 415);
    assert!(!store.deferred_jobs().is_paused().await.expect("the store answers"));

    let origin = ("origin", "http://OPS.example:8080");
    for headers in [[HOST, JSON, SAME_ORIGIN], [HOST, JSON, origin]] {
        let reply = respond(&console, request("POST", &headers), "api/actions", PAUSE).await;
        assert_eq!(reply.status, 200, "{headers:?}: {:?}", reply.body);
    }
    assert!(store.deferred_jobs().is_paused().await.expect("the store answers"));
}

#[tokio::test]
async fn reader_changes_nothing_and_sees_no_payload() {
    let store = Store::memory();
    let console = console(&store, Permission::Look);
    let headers = [HOST, JSON, SAME_ORIGIN];
    let reply = respond(&console, request("POST", &headers), "api/actions", PAUSE).await;
    assert_eq!(reply.status, 403);
    assert!(!store.deferred_jobs().is_paused().await.expect("the store answers"));

    let queue = store.queue::<String>("emails");
    let task = queue.push(&"<b>secret</b>".to_owned()).await.expect("there is room").into_id();
    let list = respond(&console, request("GET", &[HOST]), "api/tasks", b"").await;
    assert_eq!(list.status, 400, "the state is missing");
    let look = format!(r#"{{"action":"task-payload","queue":"emails","id":"{task}"}}"#);
    let sent = request("POST", &headers);
    let reply = respond(&console, sent, "api/actions", look.as_bytes()).await;
    assert_eq!(reply.status, 403);
    let audit = store.audit(AuditCursor::default(), 10).await.expect("the store answers");
    let actions = audit.records.iter().map(|record| record.action.as_str());
    assert_eq!(actions.collect::<Vec<_>>(), ["task-payload", "pause-jobs"]);
}

#[tokio::test]
async fn malformed_action_is_refused() {
    let console = console(&Store::memory(), Permission::Act);
    let bodies = ["", "{}", r#"{"action":"drop"}"#, r#"{"action":"pause-jobs"}"#];
    for body in bodies {
        let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        let reply = respond(&console, sent, "api/actions", body.as_bytes()).await;
        assert_eq!(reply.status, 400, "{body}");
    }
}

#[tokio::test]
async fn local_operator_needs_a_local_request() {
    let console = ConsoleResource::new(LocalOperator::new(Permission::Act)).store(&Store::memory());
    let status = async |peer: &str, host: &'static str| {
        let mut sent = request("GET", &[("host", host)]);
        sent.peer_addr = Some(peer.parse().expect("an address"));
        respond(&console, sent, "", b"").await.status
    };
    assert_eq!(status("127.0.0.1:50000", "localhost:3000").await, 200);
    assert_eq!(status("192.0.2.1:50000", "localhost:3000").await, 403);
    assert_eq!(status("127.0.0.1:50000", "evil.example:3000").await, 403);
}

#[tokio::test]
async fn basic_auth_compares_name_and_password() {
    let guard = BasicAuth::new(Some("ada"), Some("correct horse"), "look").expect("usable");
    let console = ConsoleResource::<()>::new(guard).store(&Store::memory());
    let status = async |credentials: Option<&'static str>| {
        let headers = Vec::from_iter(credentials.map(|value| ("authorization", value)));
        respond(&console, request("GET", &headers), "", b"").await
    };
    // `ada:correct horse`, `ada:wrong horse!`, `eve:correct horse`
    assert_eq!(status(Some("Basic YWRhOmNvcnJlY3QgaG9yc2U=")).await.status, 200);
    for wrong in ["Basic YWRhOndyb25nIGhvcnNlIQ==", "Basic ZXZlOmNvcnJlY3QgaG9yc2U=", "Basic !", ""]
    {
        assert_eq!(status(Some(wrong)).await.status, 401, "{wrong}");
    }
    let challenged = status(None).await;
    assert_eq!(challenged.status, 401);
    assert!(header(&challenged, "www-authenticate").is_some_and(|sent| sent.starts_with("Basic ")));
}

#[tokio::test]
async fn lock_is_shown_and_released_by_force() {
    let store = Store::memory();
    let guard = store.lock("order:7").acquire().await.expect("it is free");
    let console = console(&store, Permission::Act);
    let mut view = request("GET", &[HOST]);
    let parsed = console.parse_request(&mut view, "/ops/api/lock?key=order%3A7", "api/lock");
    let ConsoleReply::Complete(reply) = parsed.expect("it is admitted").execute(b"").await else {
        panic!("no events")
    };
    let lock: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(lock["holders"][0]["fence"], guard.fence());
    assert!(lock["sentence"].as_str().is_some_and(|text| text.contains("is held by")), "{lock}");

    let body = br#"{"action":"force-release","lock":"order:7","reason":"it hangs"}"#;
    let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
    assert_eq!(respond(&console, sent, "api/actions", body).await.status, 200);
    assert_eq!(guard.held_lock().lost().await, crate::LockLoss::Taken);
    let next = store.lock("order:7").acquire().await.expect("it was released");
    assert!(next.fence() > guard.fence());
    let sent = request("GET", &[HOST]);
    let reply = respond(&console, sent, "api/snapshot", b"").await;
    let snapshot: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(snapshot["holds"][0]["lock"], "order:7");
    assert_eq!(snapshot["processes"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn process_is_drained_and_resumed_from_the_page() {
    let store = Store::memory();
    let _guard = store.lock("order:7").acquire().await.expect("it is free");
    let console = console(&store, Permission::Act);
    let node = store.fleet().await.expect("the store answers").processes[0].node.clone();
    for (action, is_draining) in [("drain-process", true), ("resume-process", false)] {
        let body = format!(r#"{{"action":"{action}","node":"{node}","reason":"a test"}}"#);
        let request = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        let reply = respond(&console, request, "api/actions", body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let fleet = store.fleet().await.expect("the store answers");
        assert_eq!(fleet.processes[0].draining, is_draining);
    }
}

#[tokio::test]
async fn limit_is_shown_with_its_refusals_and_changed() {
    let store = Store::memory();
    let policy = Policy::new("1 per 1h".parse().expect("a quota")).with_name("search");
    let limiter = store.rate_limiter(policy);
    for _ in 0..3 {
        limiter.check("customer:7", 1).await.expect("it answers");
    }
    let console = console(&store, Permission::Act);
    let reply = respond(&console, request("GET", &[HOST]), "api/snapshot", b"").await;
    let snapshot: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    let shown = &snapshot["policies"];
    assert_eq!(shown[0]["deployed"][0]["quota"], "1 per 3600s");
    assert_eq!(shown[0]["top_refused"][0]["subject"], "customer:7");
    assert_eq!(shown[0]["refusals"], 2);

    let mut view = request("GET", &[HOST]);
    let target = "/ops/api/limit?policy=search&subject=customer%3A7";
    let parsed = console.parse_request(&mut view, target, "api/limit").expect("it is admitted");
    let ConsoleReply::Complete(reply) = parsed.execute(b"").await else { panic!("no events") };
    let limit: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(limit["quotas"][0]["remaining"], 0);
    let sentence = limit["sentence"].as_str().expect("a text");
    assert!(
        sentence.starts_with("customer:7 has 0 of 1 per 3600s left under search"),
        "{sentence}"
    );

    let set = async |quota: &str| {
        let body = format!(
            r#"{{"action":"set-policy","policy":"search","change":{{"quota":"{quota}"}},"reason":"load"}}"#
        );
        let sent = request("POST", &[HOST, JSON, SAME_ORIGIN]);
        respond(&console, sent, "api/actions", body.as_bytes()).await
    };
    let refused = set("5 per minute").await;
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(refused.status == 400 && text.contains("`minute` is no duration"), "{text}");
    assert_eq!(set("5 per 60s burst 2").await.status, 200);
    let changed = store.changed_policies().await.expect("it answers");
    let quota = changed.policies["search"].new_quota().map(|quota| quota.to_string());
    assert_eq!(quota.as_deref(), Some("5 per 60s burst 2"));
}
