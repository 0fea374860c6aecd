// A Vulkan layer that writes down what a driver says of the compute pipelines it makes.
//
// Each pipeline is made with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR. $WGSLM_STATISTICS/pipelines.jsonl gets a line of
// its statistics, and one of its name if the program names its objects; a handle that comes again is another pipeline. With
// $WGSLM_STATISTICS_TEXTS, also the driver's own texts of it, in $WGSLM_STATISTICS/NUMBER.txt: intermediate representations and
// the final assembly if it is "all", else those in whose name it occurs ("Assembly").
//
// Only one instance and one device are looked after, as in the programs that this is for.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static VkInstance instance;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned made;

static PFN_vkCreateComputePipelines create_pipelines;
static PFN_vkSetDebugUtilsObjectNameEXT set_name;
static PFN_vkGetPipelineExecutablePropertiesKHR executables;
static PFN_vkGetPipelineExecutableStatisticsKHR statistics;
static PFN_vkGetPipelineExecutableInternalRepresentationsKHR representations;

static FILE *output(const char *name, const char *mode) {
    const char *folder = getenv("WGSLM_STATISTICS");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : ".", name);
    return fopen(path, mode);
}

static void quoted(FILE *f, const char *text) {
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', f);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
    }
    fputc('"', f);
}

static void write_statistics(FILE *f, VkDevice device, VkPipelineExecutableInfoKHR *info) {
    uint32_t count = 0;
    statistics(device, info, &count, NULL);
    VkPipelineExecutableStatisticKHR *all = calloc(count, sizeof *all);
    for (uint32_t i = 0; i < count; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    statistics(device, info, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        fputc(',', f);
        quoted(f, all[i].name);
        fputc(':', f);
        switch (all[i].format) {
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: fputs(all[i].value.b32 ? "true" : "false", f); break;
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: fprintf(f, "%lld", (long long)all[i].value.i64); break;
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: fprintf(f, "%llu", (unsigned long long)all[i].value.u64); break;
            default: fprintf(f, "%.17g", all[i].value.f64);
        }
    }
    free(all);
}

static void write_texts(VkDevice device, VkPipelineExecutableInfoKHR *info, const char *which) {
    uint32_t count = 0;
    representations(device, info, &count, NULL);
    VkPipelineExecutableInternalRepresentationKHR *all = calloc(count, sizeof *all);
    for (uint32_t i = 0; i < count; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    representations(device, info, &count, all);
    for (uint32_t i = 0; i < count; i++) all[i].pData = calloc(1, all[i].dataSize + 1);
    representations(device, info, &count, all);
    char name[64];
    snprintf(name, sizeof name, "%u.txt", made);
    FILE *f = output(name, "a");
    for (uint32_t i = 0; i < count; i++) {
        int asked = !strcmp(which, "all") || strstr(all[i].name, which);
        if (f && all[i].isText && asked) fprintf(f, "==== %s\n%s\n", all[i].name, (char *)all[i].pData);
        free(all[i].pData);
    }
    if (f) fclose(f);
    free(all);
}

static void write_pipeline(VkDevice device, VkPipeline pipeline, double ms) {
    FILE *f = output("pipelines.jsonl", "a");
    if (!f || !executables || !statistics) return;
    VkPipelineInfoKHR of = { VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, NULL, pipeline };
    uint32_t count = 0;
    executables(device, &of, &count, NULL);
    VkPipelineExecutablePropertiesKHR *all = calloc(count, sizeof *all);
    for (uint32_t i = 0; i < count; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
    executables(device, &of, &count, all);
    const char *texts = getenv("WGSLM_STATISTICS_TEXTS");
    fprintf(f, "{\"pipeline\":%llu,\"number\":%u,\"ms\":%.1f,\"executables\":[", (unsigned long long)(uintptr_t)pipeline, ++made, ms);
    for (uint32_t i = 0; i < count; i++) {
        VkPipelineExecutableInfoKHR info = { VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, NULL, pipeline, i };
        fprintf(f, "%s{\"name\":", i ? "," : "");
        quoted(f, all[i].name);
        fprintf(f, ",\"Subgroup size\":%u", all[i].subgroupSize);
        write_statistics(f, device, &info);
        fputc('}', f);
        if (representations && texts) write_texts(device, &info, texts);
    }
    fputs("]}\n", f);
    free(all);
    fclose(f);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines_here(VkDevice device, VkPipelineCache cache, uint32_t count,
        const VkComputePipelineCreateInfo *infos, const VkAllocationCallbacks *allocator, VkPipeline *pipelines) {
    VkResult all = VK_SUCCESS;
    for (uint32_t i = 0; i < count; i++) {
        VkComputePipelineCreateInfo info = infos[i];
        info.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
        if (getenv("WGSLM_STATISTICS_TEXTS")) info.flags |= VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        VkResult result = create_pipelines(device, cache, 1, &info, allocator, &pipelines[i]);
        clock_gettime(CLOCK_MONOTONIC, &end);
        pthread_mutex_lock(&lock);
        if (result == VK_SUCCESS)
            write_pipeline(device, pipelines[i], (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6);
        else
            all = result;
        pthread_mutex_unlock(&lock);
    }
    return all;
}

static VKAPI_ATTR VkResult VKAPI_CALL set_name_here(VkDevice device, const VkDebugUtilsObjectNameInfoEXT *info) {
    if (info->objectType == VK_OBJECT_TYPE_PIPELINE && info->pObjectName) {
        pthread_mutex_lock(&lock);
        FILE *f = output("pipelines.jsonl", "a");
        if (f) {
            fprintf(f, "{\"pipeline\":%llu,\"name\":", (unsigned long long)info->objectHandle);
            quoted(f, info->pObjectName);
            fputs("}\n", f);
            fclose(f);
        }
        pthread_mutex_unlock(&lock);
    }
    return set_name ? set_name(device, info) : VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *made) {
    VkLayerInstanceCreateInfo *chain = (void *)info->pNext;
    while (chain && !(chain->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO && chain->function == VK_LAYER_LINK_INFO)) chain = (void *)chain->pNext;
    if (!chain) return VK_ERROR_INITIALIZATION_FAILED;
    next_instance = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance"))(info, allocator, made);
    if (result == VK_SUCCESS) instance = *made;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *given, const VkAllocationCallbacks *allocator, VkDevice *device) {
    static const char *needed = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    VkLayerDeviceCreateInfo *chain = (void *)given->pNext;
    while (chain && !(chain->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO && chain->function == VK_LAYER_LINK_INFO)) chain = (void *)chain->pNext;
    if (!chain) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr next = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device = chain->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    VkDeviceCreateInfo info = *given;
    const char **names = calloc(info.enabledExtensionCount + 1, sizeof *names);
    int there = 0;
    for (uint32_t i = 0; i < info.enabledExtensionCount; i++) {
        names[i] = info.ppEnabledExtensionNames[i];
        there |= !strcmp(names[i], needed);
    }
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR features =
        { VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR, (void *)info.pNext, VK_TRUE };
    if (!there) {
        names[info.enabledExtensionCount++] = needed;
        info.pNext = &features;
    }
    info.ppEnabledExtensionNames = names;
    VkResult result = ((PFN_vkCreateDevice)next(instance, "vkCreateDevice"))(physical, &info, allocator, device);
    free(names);
    if (result != VK_SUCCESS) return result;
    create_pipelines = (PFN_vkCreateComputePipelines)next_device(*device, "vkCreateComputePipelines");
    set_name = (PFN_vkSetDebugUtilsObjectNameEXT)next_device(*device, "vkSetDebugUtilsObjectNameEXT");
    executables = (PFN_vkGetPipelineExecutablePropertiesKHR)next_device(*device, "vkGetPipelineExecutablePropertiesKHR");
    statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)next_device(*device, "vkGetPipelineExecutableStatisticsKHR");
    representations = (PFN_vkGetPipelineExecutableInternalRepresentationsKHR)next_device(*device, "vkGetPipelineExecutableInternalRepresentationsKHR");
    return result;
}

static PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char *name);

static PFN_vkVoidFunction ours(const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)of_device;
    if (!strcmp(name, "vkCreateComputePipelines")) return (PFN_vkVoidFunction)create_pipelines_here;
    if (!strcmp(name, "vkSetDebugUtilsObjectNameEXT")) return (PFN_vkVoidFunction)set_name_here;
    return NULL;
}

static PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char *name) {
    PFN_vkVoidFunction function = ours(name);
    return function ? function : next_device(device, name);
}

static PFN_vkVoidFunction VKAPI_CALL of_instance(VkInstance of, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)of_instance;
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)create_device;
    PFN_vkVoidFunction function = ours(name);
    if (function) return function;
    return next_instance ? next_instance(of, name) : NULL;
}

VK_LAYER_EXPORT VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version) {
    version->pfnGetInstanceProcAddr = of_instance;
    version->pfnGetDeviceProcAddr = of_device;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    if (version->loaderLayerInterfaceVersion > 2) version->loaderLayerInterfaceVersion = 2;
    return VK_SUCCESS;
}
