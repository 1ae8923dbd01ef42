/*
 * A SPANK plugin of somebody else's that puts a job's tasks into a mount namespace of their own, as container plugins do. Tests place it
 * before or after ours in plugstack.conf. It acts upon jobs whose environment says so, and upon none of their steps that have a clean one.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include <slurm/spank.h>

SPANK_PLUGIN(foreign, 1);

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	char wish[32] = "";
	(void) argc;
	(void) argv;
	if (spank_getenv(spank, "FOREIGN_NAMESPACE", wish, sizeof(wish)) != ESPANK_SUCCESS || strcmp(wish, "yes"))
		return ESPANK_SUCCESS;
	/* Nothing of the node's /run and /tmp is seen in there. */
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("foreign", "/run", "tmpfs", 0, "mode=0755") || mount("foreign", "/tmp", "tmpfs", 0, "mode=1777")) {
		slurm_error("foreign: no namespace of its own");
		return -1;
	}
	return ESPANK_SUCCESS;
}
