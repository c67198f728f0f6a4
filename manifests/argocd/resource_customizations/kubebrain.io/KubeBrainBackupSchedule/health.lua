-- The resource follows kstatus: conditions with observedGeneration, Reconciling and Stalled.
local function judged(status, message)
  return { status = status, message = message or "" }
end

local status = obj.status
if status == nil or status.conditions == nil then
  return judged("Progressing", "The operator has not seen the schedule yet")
end
if status.observedGeneration ~= obj.metadata.generation then
  return judged("Progressing", "The operator has not seen the latest change yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function is(name, value)
  return conditions[name] ~= nil and conditions[name].status == value
end

if is("Stalled", "True") then
  return judged("Degraded", conditions.Stalled.message)
end
if is("Reconciling", "True") then
  return judged("Progressing", conditions.Reconciling.message)
end
if is("Ready", "True") then
  return judged("Healthy", conditions.Ready.message)
end
if conditions.Ready ~= nil then
  if conditions.Ready.reason == "Suspended" then
    return judged("Suspended", conditions.Ready.message)
  end
  return judged("Degraded", conditions.Ready.message)
end
return judged("Progressing", "The operator has not judged the schedule yet")
