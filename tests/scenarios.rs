//! The promises of lockgate, as HTTP exchanges over real sockets.
//!
//! Each row runs in axum and in actix-web, on the embedded store and on Redis. A behaviour without
//! a row is not promised. The rows are in `rows/`; a row without an entry below is an unused
//! function and causes a warning.

mod rows;

/// Tests of a row in each framework on each of these stores.
macro_rules! scenario_tests {
    ($stores:ident { $($module:ident: $($row:ident),+ $(,)?;)+ }) => {$(
        mod $module {$(
            mod $row {
                $stores!($module, $row);
            }
        )+}
    )+};
}

/// Four tests: both frameworks on both stores.
macro_rules! tests_on_each_store {
    ($module:ident, $row:ident) => {
        scenario_test!($module, $row, axum_on_memory, Axum, Memory);
        scenario_test!($module, $row, actix_on_memory, Actix, Memory);
        tests_on_redis!($module, $row);
    };
}

/// Two tests, for rows that need a server.
macro_rules! tests_on_redis {
    ($module:ident, $row:ident) => {
        scenario_test!($module, $row, axum_on_redis, Axum, Redis);
        scenario_test!($module, $row, actix_on_redis, Actix, Redis);
    };
}

/// One test of several servers; the framework makes no difference to them.
macro_rules! test_on_cluster {
    ($module:ident, $row:ident) => {
        scenario_test!($module, $row, axum_on_a_cluster, Axum, Cluster);
    };
}

macro_rules! scenario_test {
    ($module:ident, $row:ident, $name:ident, $framework:ident, $backing:ident) => {
        #[test]
        fn $name() {
            lockgate_tests::run_case(
                lockgate_tests::WebFramework::$framework,
                lockgate_tests::StoreKind::$backing,
                crate::rows::$module::$row,
            );
        }
    };
}

scenario_tests! { tests_on_each_store {
    quota:
        responses_report_quota_and_refusals_are_not_charged,
        policies_of_different_names_share_no_quota,
        request_after_retry_after_is_admitted,
        thirty_concurrent_requests_admit_ten,
        two_layers_report_two_quotas,
        each_key_has_its_own_quota,
        forged_forwarding_headers_do_not_change_the_key,
        route_key_has_one_quota,
        processes_share_a_quota;
    rate_policies:
        all_policies_of_one_key_are_enforced,
        all_policies_of_several_keys_are_enforced,
        groups_are_counted_separately,
        shadow_policy_refuses_no_request,
        duplicate_policy_is_charged_once,
        quota_lookup_selects_quota_by_plan,
        request_cost_is_charged,
        zero_quota_refuses_all_requests,
        handler_cost_debt_is_bounded,
        failed_requests_can_be_refunded,
        handler_can_set_the_cost,
        quota_leases_of_two_processes_share_one_quota,
        penalty_blocks_key_after_refusals,
        penalty_ends_after_its_duration,
        peek_reports_remaining_without_charge,
        reset_restores_the_quota;
    client_identity:
        trusted_proxy_names_the_client,
        nat64_addresses_map_to_their_clients,
        untrusted_peer_cannot_name_the_client,
        only_configured_client_header_is_read,
        trusted_hops_count_from_the_right,
        unidentified_client_follows_the_configured_policy,
        ipv6_clients_are_grouped_by_prefix_length,
        lock_can_be_keyed_by_client_address,
        request_extension_can_be_the_key,
        key_sources_with_different_names_share_no_quota,
        key_sources_with_different_names_share_no_lock,
        composite_keys_differ_in_each_part,
        addresses_can_be_allowed_or_denied,
        keys_can_be_allowed_or_denied;
    rate_headers:
        configured_rate_headers_are_sent,
        rate_headers_are_exposed_to_other_origins,
        preflight_is_not_charged,
        custom_refusal_response_is_sent,
        grpc_refusal_response_is_sent;
    lock:
        busy_lock_is_answered_with_409,
        routes_share_the_lock_of_a_parameter,
        lock_scopes_are_separate,
        header_can_name_the_lock,
        nested_layers_of_one_key_do_not_block_each_other,
        safe_methods_and_preflights_take_no_lock,
        operators_see_each_holder_and_its_route,
        operators_see_the_route_of_a_run,
        forced_release_takes_the_lock_from_its_holder,
        unrouted_requests_take_no_lock,
        request_body_is_streamed_under_the_lock;
    wait_queue:
        waiters_are_served_in_order_of_arrival,
        waiters_are_served_one_at_a_time,
        wait_timeout_is_reported,
        cancelled_waiter_leaves_the_queue,
        second_waiter_is_served_after_first_leaves;
    lock_release:
        lock_is_released_before_the_response,
        background_release_frees_lock_soon,
        handler_panic_releases_lock,
        client_disconnect_releases_lock,
        client_disconnect_during_body_releases_lock,
        shutdown_waits_for_request_and_releases_lock;
    hold_until:
        hold_until_response_releases_before_body_ends,
        hold_until_body_end_releases_before_last_chunk,
        fixed_length_and_empty_bodies_release_lock,
        dropped_body_releases_lock,
        failed_body_releases_lock,
        slow_reader_keeps_lock_until_body_ends,
        failed_handler_releases_lock,
        lock_loss_aborts_the_body,
        finish_on_loss_completes_the_body,
        deferred_run_holds_its_lock_until_body_ends;
    body_deadline:
        stalled_body_is_answered_with_408,
        slow_body_is_answered_with_408,
        handler_with_whole_body_has_no_deadline,
        handler_that_does_not_read_body_is_not_stopped;
    on_loss:
        handler_is_stopped_on_loss_by_default,
        finish_on_loss_marks_the_response,
        replace_on_loss_discards_the_response,
        outer_layers_see_the_lock_lost_response,
        layer_max_hold_does_not_stop_deferred_run;
    lock_policy:
        all_methods_or_only_named_ones_take_the_lock,
        busy_response_has_configured_status,
        polling_requests_acquire_the_lock_eventually,
        reject_overrides_wait;
    lock_keys:
        keys_of_one_stripe_share_a_lock,
        parameters_with_shared_name_share_a_lock,
        two_part_keys_differ_in_each_part,
        lock_set_locks_both_accounts,
        opposite_lock_sets_never_deadlock,
        request_for_several_locks_is_not_deferred,
        function_can_name_several_locks,
        readers_share_and_writers_exclude,
        two_permits_admit_two_requests;
    reentrant_locks:
        handler_acquires_its_own_lock_reentrantly,
        reentrant_lock_survives_rebuilt_request,
        deferred_run_acquires_its_lock_reentrantly,
        shared_lock_cannot_be_upgraded,
        permit_of_larger_limit_is_not_reentrant_for_smaller,
        lock_of_another_database_is_acquired,
        lock_of_another_store_handle_is_reentrant,
        fence_header_replaces_forged_values,
        delegation_shares_lock_with_called_service;
    key_encoding:
        equal_values_share_a_lock_in_both_frameworks,
        different_values_have_different_locks,
        number_is_one_key_in_every_spelling,
        invalid_utf8_values_are_refused,
        handlers_of_both_frameworks_see_the_same_value,
        empty_value_does_not_bypass_the_lock;
    misconfiguration:
        missing_store_is_server_error,
        unknown_path_parameter_is_server_error,
        duplicate_path_parameter_is_server_error,
        defer_layer_inside_lock_layer_is_server_error,
        defer_layer_outside_lock_layer_works;
    defer:
        request_for_busy_lock_is_deferred_and_runs,
        nested_route_runs_by_its_full_path,
        stored_response_is_returned_unchanged,
        bodyless_response_is_replayed_without_body,
        binary_bodies_are_preserved,
        jobs_run_in_the_order_of_acceptance,
        job_can_run_in_the_other_framework,
        run_holds_the_lock,
        shutdown_waits_for_active_run,
        namespaces_share_nothing;
    job_status:
        queue_positions_move_up,
        long_poll_ends_when_state_changes,
        long_poll_ends_when_run_ends,
        zero_or_invalid_wait_returns_at_once,
        cancelled_job_never_runs,
        running_and_done_jobs_cannot_be_cancelled,
        offered_job_can_be_cancelled,
        operator_cancels_a_run,
        invalid_ids_are_answered_alike,
        job_is_visible_only_to_its_owner,
        state_changes_are_sent_as_events,
        event_stream_ends_with_its_client,
        unchanged_document_is_304,
        dead_letters_can_be_redriven_and_purged,
        dead_letter_request_can_be_read,
        pending_jobs_are_listed_by_page,
        other_methods_are_405;
    defer_options:
        request_that_waits_long_enough_is_not_deferred,
        request_is_deferred_after_its_wait,
        respond_async_defers_on_a_free_lock,
        always_deferred_request_never_runs_directly,
        always_deferred_request_without_lock_is_refused,
        required_worker_must_be_alive_to_defer,
        body_beyond_buffer_budget_is_not_deferred,
        only_named_methods_are_deferred,
        first_wins_merges_equal_requests,
        last_wins_supersedes_queued_request,
        merged_requests_keep_their_idempotency_keys,
        delayed_job_runs_after_its_delay,
        job_expires_after_its_deadline,
        rerunnable_post_is_retried;
    direct_runs:
        completed_direct_run_is_not_repeated,
        key_of_direct_run_with_different_request_is_refused,
        unauthorized_request_may_run_again,
        request_refused_by_inner_gate_may_run_again,
        response_of_refusing_handler_is_final,
        failed_post_is_not_repeated,
        failed_rerunnable_request_runs_again,
        run_that_lost_its_lock_is_not_repeated,
        stream_is_recorded_when_it_ends,
        failed_stream_is_not_repeated,
        stream_continues_after_client_disconnect,
        response_over_storage_limit_is_passed_through,
        retry_after_unauthorized_run_may_run,
        client_disconnect_does_not_stop_keyed_run,
        client_that_leaves_before_the_run_may_retry,
        truncated_body_does_not_block_the_key,
        direct_runs_are_limited,
        waiting_request_finds_job_accepted_meanwhile,
        runs_under_lock_sets_and_permits_are_not_repeated;
    not_deferred:
        body_over_the_limit_is_not_deferred,
        head_over_the_limit_is_not_deferred,
        one_client_cannot_exhaust_the_body_budget,
        long_content_length_is_refused_before_the_body,
        chunked_body_over_the_limit_is_not_deferred,
        slow_body_is_not_deferred,
        request_beyond_full_queue_is_not_deferred,
        request_beyond_owner_limit_is_not_deferred,
        request_beyond_any_storage_limit_is_not_deferred,
        upgrade_is_not_deferred,
        request_with_credential_is_not_deferred,
        rewritten_busy_response_is_not_deferred,
        rebuilt_busy_response_is_deferred;
    retention:
        evicted_job_is_gone_for_its_owner_and_unknown_to_others,
        evicted_direct_run_is_not_repeated,
        keys_beyond_limit_are_refused_and_known_keys_work;
    replay:
        replay_keeps_request_without_connection_headers,
        arbitrary_headers_are_replayed,
        kept_credential_is_replayed,
        user_snapshot_is_replayed_without_credential,
        revoked_user_does_not_run,
        missing_idempotency_key_is_generated,
        event_stream_is_not_stored,
        body_of_unknown_length_is_stored_up_to_limit,
        sealed_job_runs_and_is_readable_with_key,
        replay_keeps_client_address,
        deferred_request_is_charged_once,
        authentication_around_worker_routes_is_a_dead_letter,
        job_without_route_stays_queued,
        forged_replay_markers_are_ignored,
        failed_or_panicked_post_is_a_dead_letter,
        failed_put_is_retried,
        post_of_crashed_worker_is_a_dead_letter,
        put_of_crashed_worker_is_retried,
        jobs_without_worker_do_not_block_requests;
    remote_replay:
        remote_run_stores_response_up_to_limit,
        retry_after_of_handler_is_capped;
    shard_fairness:
        one_owner_cannot_fill_a_shard,
        few_locks_cannot_fill_a_shard,
        unowned_requests_leave_room_for_owned_ones;
    user_scoping:
        idempotency_keys_are_scoped_by_user,
        direct_runs_are_scoped_by_user,
        user_is_carried_and_sees_own_jobs_alone,
        first_wins_is_scoped_by_user,
        last_wins_is_scoped_by_user,
        key_without_owner_scope_is_misconfiguration,
        kept_credentials_share_neither_keys_nor_merges,
        shared_scope_shares_keys_and_merges,
        merge_layer_without_owner_scope_is_rejected;
    idempotency:
        equal_keys_create_one_job,
        quoted_keys_may_contain_escapes,
        key_reuse_with_different_request_is_refused,
        retry_with_same_key_returns_the_job,
        keys_are_scoped_by_method_and_route,
        malformed_keys_are_refused;
}}

scenario_tests! { tests_on_redis {
    outage:
        lock_is_503_during_outage_and_recovers,
        always_deferred_request_is_503_during_outage,
        fail_open_lock_and_quota_admit_during_outage,
        outage_limiter_enforces_quota_in_process,
        request_is_not_deferred_during_outage,
        uncertain_enqueue_returns_503_with_location,
        frozen_store_is_unavailable;
    recovery:
        store_that_starts_later_is_used_once_reachable,
        restarts_under_load_admit_or_refuse_promptly,
        held_lock_is_lost_when_server_restarts_empty,
        worker_resumes_after_server_restarts;
}}

mod cluster {
    scenario_tests! { test_on_cluster {
        quota:
            thirty_concurrent_requests_admit_ten,
            processes_share_a_quota;
        rate_policies:
            all_policies_of_several_keys_are_enforced,
            quota_leases_of_two_processes_share_one_quota,
            penalty_blocks_key_after_refusals,
            reset_restores_the_quota;
        lock:
            busy_lock_is_answered_with_409,
            routes_share_the_lock_of_a_parameter,
            nested_layers_of_one_key_do_not_block_each_other;
        wait_queue:
            waiters_are_served_in_order_of_arrival,
            waiters_are_served_one_at_a_time,
            cancelled_waiter_leaves_the_queue,
            second_waiter_is_served_after_first_leaves;
        lock_release:
            lock_is_released_before_the_response,
            handler_panic_releases_lock,
            client_disconnect_releases_lock;
        defer:
            request_for_busy_lock_is_deferred_and_runs,
            jobs_run_in_the_order_of_acceptance,
            job_can_run_in_the_other_framework,
            shutdown_waits_for_active_run;
        job_status:
            long_poll_ends_when_run_ends,
            state_changes_are_sent_as_events,
            dead_letters_can_be_redriven_and_purged;
        replay:
            put_of_crashed_worker_is_retried,
            jobs_without_worker_do_not_block_requests;
        idempotency:
            retry_with_same_key_returns_the_job;
    }}
}

#[tokio::test]
async fn wrong_password_is_a_configuration_error() {
    rows::outage::wrong_password_is_a_configuration_error().await;
}
