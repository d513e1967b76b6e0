//! The promises of lockgate, as HTTP exchanges over real sockets.
//!
//! Each row runs through axum and through actix-web, on the embedded store and on Redis. A behaviour
//! without a row is not promised. The rows lie in `rows/`; one that is missing below is an unused
//! function, and so a warning.

mod rows;

/// One test of a row in each framework on each of these stores.
macro_rules! table {
    ($stores:ident { $($module:ident: $($row:ident),+ $(,)?;)+ }) => {$(
        mod $module {$(
            mod $row {
                $stores!($module, $row);
            }
        )+}
    )+};
}

/// Four tests.
macro_rules! each_store {
    ($module:ident, $row:ident) => {
        test!($module, $row, axum_on_memory, Axum, Memory);
        test!($module, $row, actix_on_memory, Actix, Memory);
        only_redis!($module, $row);
    };
}

/// Two tests, for what only a server can do.
macro_rules! only_redis {
    ($module:ident, $row:ident) => {
        test!($module, $row, axum_on_redis, Axum, Redis);
        test!($module, $row, actix_on_redis, Actix, Redis);
    };
}

/// One test, of what several servers do together: which framework asks them makes no difference to them.
macro_rules! a_cluster {
    ($module:ident, $row:ident) => {
        test!($module, $row, axum_on_a_cluster, Axum, Cluster);
    };
}

macro_rules! test {
    ($module:ident, $row:ident, $name:ident, $framework:ident, $backing:ident) => {
        #[test]
        fn $name() {
            lockgate_tests::run(
                lockgate_tests::Framework::$framework,
                lockgate_tests::Backing::$backing,
                crate::rows::$module::$row,
            );
        }
    };
}

table! { each_store {
    quota:
        a_request_is_told_its_quota_and_a_refused_one_is_not_charged,
        policies_of_different_names_share_no_quota,
        who_comes_back_in_time_gets_in,
        of_thirty_at_once_ten_pass,
        two_layers_tell_two_quotas,
        each_key_has_a_quota,
        forged_addresses_change_nothing,
        a_route_has_one_quota,
        processes_share_a_quota;
    limits:
        several_policies_of_one_key_are_all_kept,
        several_policies_of_several_keys_are_all_kept,
        a_group_counts_by_itself,
        a_shadow_refuses_nobody,
        one_policy_twice_is_charged_once,
        quotas_can_be_those_of_a_plan,
        requests_can_cost_more_than_others,
        a_quota_of_zero_refuses_all,
        what_a_handler_charges_is_bounded,
        failures_can_be_free,
        the_handler_can_say_what_it_cost,
        processes_lease_of_one_quota,
        refusals_can_be_punished,
        a_punishment_ends,
        a_look_tells_what_is_left_and_costs_nothing,
        a_reset_forgets_what_was_spent;
    client:
        a_proxy_is_believed_whom_it_speaks_for,
        translated_clients_are_told_apart,
        nobody_else_is_believed,
        the_field_is_the_one_that_is_named,
        hops_are_counted_from_the_right,
        whom_nobody_tells_is_refused_or_as_was_said,
        networks_are_as_wide_as_they_are_set,
        a_lock_can_be_a_clients,
        what_a_layer_further_out_knows_is_a_key,
        sources_of_different_names_share_no_quota,
        sources_of_different_names_share_no_lock,
        each_part_of_a_key_counts,
        addresses_can_be_let_through_or_denied,
        keys_can_be_let_through_or_denied;
    told:
        the_fields_are_those_of_choice,
        other_origins_may_read_them,
        a_preflight_is_not_charged,
        the_answer_can_be_ones_own,
        the_answer_can_be_grpcs;
    lock:
        a_busy_lock_is_409,
        routes_share_the_lock_of_a_parameter,
        scopes_are_apart,
        a_header_can_name_the_lock,
        nested_layers_of_one_key_do_not_block_each_other,
        safe_methods_and_preflights_take_no_lock,
        what_is_not_routed_leaves_no_lock,
        a_body_that_arrives_under_the_lock_is_streamed;
    line:
        waiters_pass_in_the_order_they_came,
        all_waiters_pass_one_by_one,
        who_waits_too_long_is_told_so,
        a_waiter_that_leaves_keeps_no_place,
        a_second_waiter_passes_when_the_first_has_left;
    end_of_lock:
        returned,
        returned_in_the_background,
        panicked,
        disconnected,
        disconnected_in_the_middle_of_the_body,
        stopped;
    hold_until:
        answered_is_before_the_body_has_ended,
        the_body_has_ended,
        a_body_of_known_length_or_none_has_ended,
        the_body_was_dropped,
        the_body_broke_off,
        a_slow_reader_holds_it,
        the_handler_ended_otherwise,
        a_loss_breaks_the_body_off,
        a_loss_lets_the_body_go_on,
        a_run_holds_its_own;
    body_deadline:
        who_stops_is_told,
        who_dribbles_is_told,
        a_handler_that_has_its_body_may_take_its_time,
        a_handler_that_does_not_wait_is_not_stopped;
    on_loss:
        a_handler_is_stopped,
        a_handler_may_finish_and_is_marked,
        an_answer_is_replaced,
        layers_further_out_see_the_answer,
        a_deferred_run_is_not_stopped_by_the_layer;
    policy:
        all_methods_or_exactly_the_named_ones_lock,
        the_busy_answer_has_the_status_of_choice,
        who_asks_again_passes_in_the_end,
        a_wait_can_be_taken_back;
    keys:
        one_stripe_is_one_lock,
        parameters_can_share_a_name,
        both_parts_of_a_key_count,
        a_transfer_locks_both_accounts,
        transfers_there_and_back_never_wait_in_a_circle,
        a_request_of_several_locks_is_not_deferred,
        a_function_can_name_several_locks,
        readers_share_and_writers_do_not,
        two_at_once_and_no_more;
    within:
        its_handler_has_the_lock_already,
        a_middleware_that_rebuilds_it_changes_nothing,
        a_deferred_run_has_its_lock,
        what_it_shares_it_does_not_get_alone,
        a_permit_of_many_is_none_of_few,
        a_lock_of_another_database_is_taken,
        a_lock_of_another_handle_is_there,
        upstreams_are_told_the_fence_and_nothing_else,
        another_service_takes_its_word;
    odd_keys:
        one_value_is_one_lock_in_both_frameworks,
        different_values_are_different_locks,
        a_number_is_one_key_however_it_is_spelt,
        bytes_that_are_no_text_are_refused,
        the_handler_sees_the_same_value_in_both_frameworks,
        an_empty_value_is_no_way_around;
    wiring:
        without_a_store_nothing_passes,
        a_parameter_that_the_route_lacks_is_our_fault,
        a_parameter_that_matches_twice_is_our_fault,
        a_defer_layer_inside_the_lock_is_our_fault,
        a_defer_layer_outside_the_lock_is_right;
    defer:
        a_busy_resource_defers_the_request,
        a_nested_route_runs_by_its_whole_path,
        the_response_is_given_back_as_it_was,
        a_response_that_has_no_body_is_given_back_without,
        bytes_that_are_no_text_come_back_too,
        jobs_run_in_the_order_of_acceptance,
        the_other_framework_runs_it,
        the_run_holds_the_lock,
        a_stopping_site_lets_its_run_end,
        namespaces_share_nothing;
    status:
        positions_move_up,
        a_wait_ends_when_something_changes,
        a_wait_ends_when_the_run_does,
        a_wait_of_nothing_is_over_at_once,
        a_cancelled_job_never_runs,
        what_runs_or_has_run_is_not_cancelled,
        an_offered_job_can_be_cancelled,
        ids_that_are_none_are_all_alike,
        a_job_is_shown_to_its_owner_alone,
        each_change_is_an_event,
        a_stream_ends_with_its_client,
        what_is_known_is_not_sent_again,
        dead_letters_are_put_back,
        a_dead_letter_can_be_read,
        what_waits_and_runs_is_listed,
        other_methods_are_405;
    accepting:
        who_waits_long_enough_is_not_deferred,
        who_waits_too_long_is_deferred,
        a_client_may_rather_have_a_202,
        a_background_request_never_runs_at_once,
        a_background_request_without_a_lock_is_refused,
        a_worker_can_be_required,
        bodies_have_no_more_room_than_there_is,
        methods_can_be_named,
        of_several_the_first_can_win,
        of_several_the_last_can_win,
        each_of_several_is_known_by_its_own_key,
        a_delay_is_kept,
        what_is_too_late_expires,
        every_method_can_run_again;
    remembered:
        what_ran_at_once_does_not_run_again,
        another_request_under_the_key_of_one_that_ran_is_refused,
        what_was_not_let_in_runs_again,
        what_a_gate_within_refuses_runs_again,
        what_the_handler_refuses_has_run,
        what_failed_may_have_run,
        what_failed_and_does_nothing_twice_runs_again,
        what_lost_its_lock_may_have_run,
        a_stream_is_remembered_when_it_has_ended,
        a_stream_that_breaks_off_may_have_run,
        a_stream_goes_on_when_its_client_has_left,
        a_long_answer_is_passed_through,
        a_retry_meanwhile_of_what_fails_may_run,
        a_client_that_leaves_ends_nothing,
        a_client_that_leaves_before_it_begins_may_come_again,
        a_body_that_was_cut_off_locks_nobody_out,
        runs_are_bounded,
        what_was_accepted_while_it_waited_is_known,
        what_ran_under_several_locks_or_a_permit_does_not_run_again;
    not_deferred:
        a_body_over_the_limit,
        a_head_that_is_too_long,
        one_client_leaves_room_for_the_bodies_of_others,
        a_body_that_says_it_is_too_long,
        a_long_body_of_unknown_length,
        a_body_that_takes_too_long,
        a_line_that_is_full,
        an_owner_who_has_too_many,
        each_bound_that_is_set,
        an_upgrade,
        a_credential,
        a_busy_answer_that_was_rewritten,
        a_busy_answer_that_was_made_anew_still_is;
    kept:
        what_was_evicted_is_gone_for_its_owner_alone,
        what_ran_at_once_is_evicted_and_does_not_run_again,
        a_key_too_many_is_refused_and_old_ones_are_known;
    replay:
        the_request_is_the_same_without_its_connection,
        lines_of_any_names_come_along,
        a_credential_that_is_kept_comes_along,
        who_it_was_comes_along_and_not_the_credential,
        who_lost_the_right_to_it_does_not_run,
        a_key_is_made_if_none_was_sent,
        a_stream_is_not_kept,
        a_body_of_no_known_length_is_kept_up_to_the_limit,
        what_is_sealed_runs_and_is_told,
        the_client_keeps_its_address,
        a_quota_is_charged_once,
        authentication_in_the_way_is_a_dead_letter,
        a_route_that_is_missing_is_waited_for,
        forged_markers_are_nothing,
        a_post_that_fails_or_panics_is_a_dead_letter,
        a_put_that_fails_runs_again,
        a_post_whose_worker_died_is_a_dead_letter,
        a_put_whose_worker_died_runs_again,
        without_a_worker_the_others_go_on;
    elsewhere:
        a_run_takes_place_there,
        a_handler_is_heeded_for_so_long;
    crowded:
        an_owner_cannot_fill_the_shard_of_another,
        a_few_locks_cannot_fill_the_shard_of_another,
        requests_without_an_owner_leave_room_for_owners;
    users:
        a_key_is_its_users_alone,
        a_direct_run_is_remembered_for_its_user_alone,
        the_first_wins_among_the_requests_of_one_user,
        the_last_supersedes_no_other_users,
        a_key_of_a_user_whom_nothing_names_is_our_fault,
        clients_of_a_kept_credential_share_neither_keys_nor_merges,
        users_who_share_all_share_keys_and_merges,
        a_layer_that_would_share_users_requests_is_refused;
    idempotency:
        one_key_is_one_job,
        a_key_may_be_any_string,
        another_request_under_the_key_is_refused,
        a_retry_gets_the_job,
        methods_and_routes_do_not_share_keys,
        a_malformed_key_is_refused;
}}

table! { only_redis {
    outage:
        a_lock_is_503_and_comes_back,
        what_is_always_deferred_is_503,
        a_lock_and_a_quota_can_admit,
        a_quota_is_kept_by_the_process_alone,
        a_request_is_not_deferred,
        an_acceptance_without_an_answer,
        a_store_that_hangs_is_away;
    recovery:
        a_store_that_is_not_there_yet,
        killed_and_restarted_under_load,
        a_lock_that_was_held_is_given_up,
        the_worker_goes_on;
}}

mod shards {
    table! { a_cluster {
        quota:
            of_thirty_at_once_ten_pass,
            processes_share_a_quota;
        limits:
            several_policies_of_several_keys_are_all_kept,
            processes_lease_of_one_quota,
            refusals_can_be_punished,
            a_reset_forgets_what_was_spent;
        lock:
            a_busy_lock_is_409,
            routes_share_the_lock_of_a_parameter,
            nested_layers_of_one_key_do_not_block_each_other;
        line:
            waiters_pass_in_the_order_they_came,
            all_waiters_pass_one_by_one,
            a_waiter_that_leaves_keeps_no_place,
            a_second_waiter_passes_when_the_first_has_left;
        end_of_lock:
            returned,
            panicked,
            disconnected;
        defer:
            a_busy_resource_defers_the_request,
            jobs_run_in_the_order_of_acceptance,
            the_other_framework_runs_it,
            a_stopping_site_lets_its_run_end;
        status:
            a_wait_ends_when_the_run_does,
            each_change_is_an_event,
            dead_letters_are_put_back;
        replay:
            a_put_whose_worker_died_runs_again,
            without_a_worker_the_others_go_on;
        idempotency:
            a_retry_gets_the_job;
    }}
}

#[tokio::test]
async fn a_wrong_password_is_a_fault_of_the_configuration() {
    rows::outage::a_wrong_password_is_a_fault_of_the_configuration().await;
}
