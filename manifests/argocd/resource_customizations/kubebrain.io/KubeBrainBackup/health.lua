-- The resource follows kstatus: conditions with observedGeneration, Reconciling and Stalled.
local function judged(status, message)
  return { status = status, message = message or "" }
end

local status = obj.status
if status == nil or status.conditions == nil then
  return judged("Progressing", "The operator has not seen the backup yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function is(name, value)
  return conditions[name] ~= nil and conditions[name].status == value
end

-- A backup ends once; a change of its deletionPolicy does not change how.
if is("Failed", "True") then
  return judged("Degraded", conditions.Failed.message)
end
if is("Complete", "True") then
  -- Unknown says nothing about the backup.
  if is("Verified", "False") then
    return judged("Degraded", conditions.Verified.message)
  end
  return judged("Healthy", conditions.Complete.message)
end
if conditions.Reconciling ~= nil then
  return judged("Progressing", conditions.Reconciling.message)
end
return judged("Progressing", "The operator has not judged the backup yet")
