# SPDX-License-Identifier: Apache-2.0
"""Every attack on the hook, and the tests that prove the defence against it.

`held` is the test in which the attack does nothing, `shown` the one in which it succeeds as soon as
the defence is taken out; mostly they are one, which does both. Names are those of modules here and
functions in them. Where a test takes the fixture `runtime` it runs with each low-level runtime.
"""

import attrs


@attrs.frozen
class Proof:
    """Where an attack is seen to fail with a defence, and to succeed without."""

    held: str
    shown: str = ""

    @property
    def tests(self) -> set[str]:
        return {self.held, self.shown or self.held}


ATTACKS = {
    "more capabilities than ldconfig needs": Proof(
        "test_confinement.test_it_has_two_capabilities"
    ),
    "a directory of the host by its handle": Proof(
        "test_confinement.test_it_opens_nothing_by_handle"
    ),
    "new privileges with a new program": Proof(
        "test_confinement.test_a_program_that_it_starts_has_no_more"
    ),
    "processes outside": Proof("test_confinement.test_it_sees_no_other_process"),
    "the group of processes outside": Proof(
        "test_confinement.test_it_reaches_no_group_of_processes"
    ),
    "shared memory of the host": Proof("test_confinement.test_it_finds_no_shared_memory"),
    "sockets of the host": Proof("test_confinement.test_it_reaches_no_socket_of_the_host"),
    "descriptors that were left open": Proof("test_confinement.test_no_descriptor_is_left_to_it"),
    "memory without end": Proof("test_confinement.test_its_memory_is_bounded"),
    "LD_* in ldconfig's environment": Proof("test_confinement.test_it_has_no_environment"),
    "LD_* in the image's environment": Proof(
        "test_defences.test_cve_2025_23266_the_environment_is_the_hooks_own"
    ),
    "PYTHON* in the image's environment": Proof(
        "test_defences.test_cve_2025_23266_modules_of_the_image_are_not_imported"
    ),
    "an ldconfig of the image": Proof("test_confinement.test_an_ldconfig_of_the_image_is_not_run"),
    "an ldconfig that is a script": Proof(
        "test_confinement.test_a_script_in_place_of_the_hosts_ldconfig"
    ),
    "a drop-in that changes the image's order": Proof("test_defences.test_the_order_of_libraries"),
    "folders of the image that are left out": Proof(
        "test_defences.test_the_images_own_directories_stay_listed"
    ),
    "a read-only root": Proof("test_defences.test_a_read_only_container_gets_its_cache"),
    "a read-only layer": Proof("test_defences.test_a_read_only_layer_is_kept"),
    "absolute links, and links with ..": Proof(
        "test_attacks.test_links_that_lead_out",
        "test_defences.test_cve_2024_0134_links_by_paths_of_the_host",
    ),
    "loops of links": Proof("test_races.test_a_loop_of_links_is_given_up"),
    "links into /proc": Proof(
        "test_attacks.test_links_that_lead_out", "test_defences.test_cve_2024_0134_links_by_proc"
    ),
    "links into /sys": Proof("test_defences.test_nothing_is_written_to_sys"),
    "links into /proc/driver/nvidia": Proof(
        "test_defences.test_proc_of_the_driver_is_not_touched"
    ),
    "a /proc that is the host's": Proof(
        "test_defences.test_a_proc_that_is_the_hosts_is_not_covered"
    ),
    "a hostile ld.so.cache": Proof("test_defences.test_cve_2025_23267_a_cache_by_a_link"),
    "an ld.so.cache that lies": Proof(
        "test_hostile_files.test_a_cache_that_lists_what_is_not_there"
    ),
    "an ld.so.cache of any bytes": Proof(
        "test_cache.test_hostile_caches",
        "test_hostile_files.test_a_cache_that_lists_what_is_not_there",
    ),
    "a hostile ld.so.conf": Proof("test_defences.test_cve_2025_23267_names_of_the_hosts_files"),
    "an ld.so.conf without end": Proof("test_hostile_files.test_a_configuration_without_end"),
    "files that include each other": Proof(
        "test_hostile_files.test_files_that_include_each_other"
    ),
    "a file of any size": Proof("test_hostile_files.test_a_file_of_any_size_is_not_read"),
    "a cache of any size": Proof("test_hostile_files.test_a_cache_of_any_size_is_not_kept"),
    "a cache that grows in memory": Proof("test_file_systems.test_a_cache_that_grows_in_memory"),
    "files that are the host's too (hard links)": Proof(
        "test_file_systems.test_a_file_that_is_the_hosts_too"
    ),
    "a file system that is full": Proof("test_file_systems.test_a_full_root_keeps_its_cache"),
    "files and directories that nobody may change": Proof(
        "test_file_systems.test_what_nobody_may_change"
    ),
    "a volume that does not answer": Proof("test_file_systems.test_a_volume_that_does_not_answer"),
    "mounts in /proc: a FIFO": Proof(
        "test_mounts_in_proc.test_a_fifo_in_the_drivers_part_is_not_waited_for"
    ),
    "mounts in /proc: the name of another GPU": Proof(
        "test_mounts_in_proc.test_a_name_in_a_mount_shows_no_other_gpu"
    ),
    "a FIFO in the way": Proof("test_hostile_files.test_a_fifo_is_not_waited_for"),
    "a device in the way": Proof("test_hostile_files.test_a_device_is_not_opened"),
    "a directory in the way": Proof("test_hostile_files.test_a_directory_in_the_way"),
    "directories of another owner": Proof("test_hostile_files.test_directories_of_another_owner"),
    "text that forges a line of a log": Proof(
        "test_hostile_files.test_text_of_an_image_cannot_forge_a_line"
    ),
    "thousands of files": Proof("test_hostile_files.test_many_files"),
    "a million files": Proof(
        "test_hostile_files.test_a_million_files", "test_hostile_files.test_many_files"
    ),
    "the driver's directory written to": Proof(
        "test_steps_inside.test_the_drivers_directory_is_not_written_to"
    ),
    "user mounts anywhere": Proof("test_defences.test_users_mounts_are_not_written_to"),
    "mounts that spread to the host": Proof(
        "test_attacks.test_mounts_are_not_propagated", "test_defences.test_mounts_are_private"
    ),
    "things swapped: the root itself": Proof(
        "test_races.test_cve_2025_23359_the_root_itself_is_swapped"
    ),
    "things swapped: the driver's place": Proof(
        "test_races.test_cve_2025_23359_the_drivers_place_is_swapped"
    ),
    "things swapped: ldconfig's place in memory": Proof(
        "test_races.test_cve_2025_23359_ldconfigs_place_in_memory_is_swapped"
    ),
    "things swapped: before the view": Proof(
        "test_races.test_cve_2025_23359_a_directory_is_swapped_before_the_view"
    ),
    "things swapped: inside the view": Proof(
        "test_races.test_cve_2025_23359_a_directory_is_swapped_inside_the_view"
    ),
    "CVE-2024-0132": Proof("test_defences.test_cve_2024_0132_the_host_is_not_in_view"),
    "CVE-2024-0132: CUDA's compatibility libraries": Proof(
        "test_defences.test_cve_2024_0132_compatibility_libraries_that_lead_out"
    ),
    "CVE-2024-0132: a newer CUDA driver in the image": Proof(
        "test_steps_inside.test_cve_2024_0132_a_compatibility_library_that_is_the_hosts"
    ),
    "CVE-2024-0134: modules of the driver": Proof(
        "test_steps_inside.test_cve_2024_0134_a_module_by_a_link"
    ),
    "CVE-2025-23267: an application profile": Proof(
        "test_steps_inside.test_cve_2025_23267_a_profile_by_a_link"
    ),
    "CVE-2024-0133": Proof("test_defences.test_cve_2024_0133_no_file_is_made_on_the_host"),
    "CVE-2024-0134": Proof("test_defences.test_cve_2024_0134_links_by_proc"),
    "CVE-2024-0136": Proof(
        "test_confinement.test_cve_2024_0136_the_hosts_ldconfig_is_not_overwritten"
    ),
    "CVE-2025-23266": Proof("test_defences.test_cve_2025_23266_the_environment_is_the_hooks_own"),
    "CVE-2025-23267": Proof("test_defences.test_cve_2025_23267_a_drop_in_by_a_link"),
    "CVE-2025-23359": Proof("test_races.test_cve_2025_23359_the_drivers_place_is_swapped"),
}

ONE_RUNTIME_DOES = {
    "test_cache.test_hostile_caches": "the bytes are read by themselves, many thousand times",
    "test_confinement.test_it_reaches_no_group_of_processes": "the group is the test's own",
    "test_confinement.test_no_descriptor_is_left_to_it": "runtimes leave none to be inherited",
    "test_defences.test_mounts_are_private": "test_mounts_are_not_propagated goes through them",
    "test_file_systems.test_a_volume_that_does_not_answer": "a runtime that has to mount such a "
    "volume waits for it itself",
    "test_races.test_cve_2025_23359_a_directory_is_swapped_inside_the_view": "the hook is stopped "
    "and continued, for which it has to be the test's own child",
}
"""Tests that start the hook by themselves, and why."""
